"""Optimiser steps of a run: taken, committed, checkpointed, and watched for logprob gaps."""
