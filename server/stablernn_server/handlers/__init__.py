"""From a request of one kind to an inference to its response, without HTTP."""
