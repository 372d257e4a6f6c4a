"""The kinds gsm8k and math-hard: answer, compare the answers of others, agree. Stages are counted from 0."""
