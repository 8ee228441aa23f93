"""What the environments share: the batched environment, pictures.

Front door: `vector_env.NativeVecEnv`.
"""
