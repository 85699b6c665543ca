//! Digests, which tell models and data apart.

use sha2::{Digest, Sha256};

/// Bytes of a digest that are used. 64 bits tell files apart that nobody made to look alike.
const BYTES: usize = 8;

/// The digest of parts that follow one another: the beginning of what `sha256sum` prints, in hexadecimal.
pub(super) fn digest(parts: impl IntoIterator<Item = impl AsRef<[u8]>>) -> String {
    let mut sum = Sha256::new();
    parts.into_iter().for_each(|part| sum.update(part));
    let digits = sum.finalize().iter().take(BYTES).map(|byte| format!("{byte:02x}")).collect::<String>();
    format!("sha256:{digits}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The digest of "abc" is that of FIPS 180-4.
    #[test]
    fn parts_count_as_one() {
        assert_eq!(digest(["abc"]), "sha256:ba7816bf8f01cfea");
        assert_eq!(digest(["a", "", "bc"]), digest(["abc"]));
        assert_ne!(digest(["acb"]), digest(["abc"]));
    }
}
