"""The studies: specs, data, models, training, evaluation, analysis and reports."""
