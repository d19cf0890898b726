"""GPU and host activity over time, from a trace: busy, idle by cause, launches, queues, memory copies.

`trace` reads a Chrome trace of torch.profiler; idle, launches, queues, copies and operators each compute one table from it and import
nothing but it; `analysis` combines them. Times are integers in ns inside, us in tables and JSON."""
