"""What the matrix products of all backends share: which of a backend's configurations a product gets.

gpu.py     what a GPU can do, in some twenty numbers that `opwise tune --machine` measures
cost.py    what a configuration makes it do (`Work`), and how long that should take, in us
choice.py  the quickest configuration: by a table of measured times where it has the product, else by the predicted time
"""
