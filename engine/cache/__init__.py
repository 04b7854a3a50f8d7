"""Keys and values of computed tokens: the blocks, who holds them, which tokens they belong to, and the tensors."""
