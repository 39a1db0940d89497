"""Log formats, one a file; the contract is `foreshock.core.reader.Reader`."""
