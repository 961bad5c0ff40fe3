"""Real causal language models: requests and slots on the host, weights, KV cache and future tokens on the device.

Importing this imports no torch: it comes in where a model is loaded. `smollm2.smollm2()` gives the folder of a small model.
"""

from .causal_lm import CausalLM as CausalLM
from .slots import Batch as Batch
from .slots import Output as Output
from .slots import Request as Request
from .slots import Row as Row
from .slots import SlotScheduler as SlotScheduler
from .text import Transcript as Transcript
from .tokenizer import Tokenizer as Tokenizer
