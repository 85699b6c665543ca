//! NumPy's file format for arrays, version 1.0 (numpy.lib.format), as far as f32 vectors and matrices need it.

/// The bytes of an `.npy` file that holds `values` as a little-endian f32 array of shape `(n,)`.
pub fn vector(values: &[f32]) -> Vec<u8> {
    array(&format!("({},)", values.len()), values)
}

/// The same of shape `(rows, columns)`; `values` are the rows one after the other.
pub fn matrix(values: &[f32], columns: usize) -> Vec<u8> {
    array(&format!("({}, {columns})", values.len().checked_div(columns).unwrap_or(0)), values)
}

fn array(shape: &str, values: &[f32]) -> Vec<u8> {
    let dict = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}");
    // Magic, version and the header's length take 10 bytes; the header is padded with spaces and ends in a
    // newline so that the data starts at a multiple of 64.
    let padding = (64 - (10 + dict.len() + 1) % 64) % 64;
    let header = format!("{dict}{}\n", " ".repeat(padding));
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_is_what_numpy_writes() {
        // numpy.save of numpy.array([1, -2], dtype=numpy.float32), NumPy 2.
        let expected = b"\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }";
        let bytes = vector(&[1.0, -2.0]);
        assert_eq!(&bytes[..expected.len()], expected);
        assert!(bytes[expected.len()..127].iter().all(|b| *b == b' '));
        assert_eq!(bytes[127], b'\n');
        assert_eq!(bytes[128..], [0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0]);
    }

    #[test]
    fn matrices_have_two_extents() {
        let bytes = matrix(&[1.0; 6], 3);
        assert!(String::from_utf8_lossy(&bytes[10..128]).contains("'shape': (2, 3), }"));
        assert_eq!(bytes.len(), 128 + 24);
    }

    #[test]
    fn data_is_aligned() {
        for n in [0, 1, 99, 8192, 1_000_000] {
            let bytes = vector(&vec![0.0; n]);
            assert_eq!((bytes.len() - 4 * n) % 64, 0, "{n}");
        }
    }
}
