"""What the GPU and the host did over time, from a trace: busy, idle by cause, launches, queues, memory copies.

`trace` reads a Chrome trace as torch.profiler writes it; idle, launches, queues, copies and operators each answer one question about it
and import nothing but it; `analysis` puts them together. Times are integers in ns inside, us in what is shown or written as JSON.
"""
