"""What a block graph can hold: the tensors of one program and context, saturated, and the derivations of its outputs.

A `Context` says which axis the for-loop cuts and a `Tier` how much algebra the expression check sees; `Saturation` fills a
`Closure` (`BoundedSaturation` up to a number of operators), the `Extractor` lists its derivations as `Sketch`s, and the
`Stabilizer` makes their exponentials safe. Nothing here knows sizes or devices.
"""
