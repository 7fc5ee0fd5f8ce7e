"""Text generation with a Llama-architecture model from a GGUF file."""
