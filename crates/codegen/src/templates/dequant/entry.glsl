// Point i of the codebook, two a word.
uint ${ name }_entry(uint i) { return bitfieldExtract(${ word }, int(16u * (i & 1u)), 16); }
