"""Hugging Face configs: which class they mean, what it takes, what its loss compares.

Front doors: `source.huggingface_source`, `module.build_huggingface`. transformers is imported only
when a function here is called.
"""
