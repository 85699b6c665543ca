// What brings a digit of tq1_0 to the front.
const uint powers_of_3[5] = uint[](1u, 3u, 9u, 27u, 81u);
