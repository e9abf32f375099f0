from anydevice.tables import Table, plain_text

NAMES = ["run", "epoch", "loss", "val_accuracy", "epoch duration", "run duration", "lr", "device"]
ROW = ["1", "5", "0.3706", "0.869*", "0.86 s", "7.3 s", "0.005", "cuda"]


def table() -> Table:
    return Table(NAMES, [ROW, ROW], right=NAMES[:-1])


def test_a_table_that_fits_is_one() -> None:
    head, *_ = plain_text(table(), width=120).splitlines()
    assert head.split() == " ".join(NAMES).split()


def test_columns_without_room_stand_below_with_the_first_one_again() -> None:
    lines = plain_text(table(), width=40).splitlines()
    assert max(map(len, lines)) <= 40
    assert sum(line.split()[:1] == ["run"] and "─" not in line for line in lines) >= 2
    for word in [*" ".join(NAMES).split(), "0.86 s", "0.869*"]:
        assert any(word in line for line in lines), word


def test_heads_fold_between_words_before_columns_move() -> None:
    lines = plain_text(table(), width=75).splitlines()
    assert sum("─" in line for line in lines) == 1
    assert not any("epoch duration" in line for line in lines)


def test_long_texts_of_few_columns_fold() -> None:
    lines = plain_text(
        Table(["name", "what it is"], [["cpu", "word " * 30]]), width=40
    ).splitlines()
    assert max(map(len, lines)) <= 40
    assert sum(line.count("word") for line in lines) == 30
    assert sum("─" in line for line in lines) == 1
