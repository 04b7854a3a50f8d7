"""Model files: the catalogue, downloads, and reading GGUF and safetensors."""
