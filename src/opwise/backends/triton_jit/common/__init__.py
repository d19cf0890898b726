"""Shared by the ops of this backend: launch, compilation without a GPU, conversions, PTX, thread block clusters."""
