// What the files of recurrent networks share.
#pragma once

#include "kernel.h"

namespace anydevice::kernels {

// cuDNN's numbers.
enum RnnMode : int64_t { rnn_relu = 0, rnn_tanh = 1, rnn_lstm = 2, rnn_gru = 3 };

}  // namespace anydevice::kernels
