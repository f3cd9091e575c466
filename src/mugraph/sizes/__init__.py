"""Functions at sizes that are known when they are called: one result for a range of sizes.

Where program and muGraph act on slices along the dimension that varies, the result at any size is put together of results at a
few (`sliced_functions`, `chunk_plans`, `covering`). Where a function reduces it, kernels of a larger size serve, masked behind
the elements (`masked_functions`, `capacities`, `capacity_results`); otherwise each size has kernels of its own
(`dynamic_results`).
"""
