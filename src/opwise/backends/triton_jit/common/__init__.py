"""What the ops of this backend share: the launch, compiling without a GPU, conversions, PTX, thread block clusters."""
