"""The commands of `encoder-fast`: each module has `add_arguments(parser)` and `run(args)`."""
