// What kernels keep between calls, and each machine begins without.
#pragma once

namespace anydevice::kernels {

void set_attention_order();    // attention_choice.cpp
void forget_dropout_states();  // rnn_entry.cpp

}  // namespace anydevice::kernels
