"""One PyTorch thread in the test process: the suite shares a small machine with its own workers."""

import signal
import sys
from pathlib import Path

import torch

torch.set_num_threads(1)
sys.path.insert(0, str(Path(__file__).parent / "helpers"))
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a suite in the background; commands would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
