"""Models and training loops that come with heterps.

Front doors: `ctr.click_through` and `sequential.perceptron`, factories as MODEL takes them. Two
whole loops under `PipelineTrainer`: `train_click_through`, `finetune_llama`. What starts as a
program reads its arguments by `command_line.ExampleParser`.
"""
