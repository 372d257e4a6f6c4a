"""The kinds gsm8k and math-hard: stage 0 answers, stage 1 judges peers' answers, stage 2 agrees on one."""
