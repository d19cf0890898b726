"""What matmul of all backends shares: which of a backend's configurations (tile, stages, split-K) a product gets.

gpu.py     the GPU's rates and latencies, 25 numbers, which `opwise tune --machine` measures
cost.py    the work of a configuration (`Work`), and its predicted time in us
choice.py  the fastest configuration: by measured times where a table has the product, else by predicted time
"""
