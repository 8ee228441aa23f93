"""A user's training program: model, loss, optimizer, data, and which samples are due.

Front door: `program.TrainingProgram`. Where one is read from: `program_file`. Which samples are
due, and who reads them: `sample_order`, `batches`.
"""
