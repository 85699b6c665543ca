// Twice the 4-bit floats (e2m1) of mxfp4 and nvfp4.
const float fp4_levels[16] = float[](0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0,
                                     0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0);
