//! Arbitrary bytes as a model file: its head, its tensors' data, its tokenizer. Errors are fine; a panic, a read
//! outside of the file or an allocation out of proportion to it is a finding.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tallow_gguf::{GgufFile, Tokenizer};

/// Elements of a tensor that are looked at: data is large, and one block is like another.
const ELEMENTS: usize = 512;

fuzz_target!(|bytes: &[u8]| {
    let Ok(file) = GgufFile::parse(bytes) else { return };
    let mut ranges = vec![];
    for tensor in file.tensors() {
        let Ok(data) = file.tensor_data(tensor) else { continue };
        assert_eq!(data.len(), tensor.bytes);
        ranges.push((tensor.offset, tensor.offset + tensor.bytes as u64));
        let format = tensor.format().expect("data has a format");
        for index in 0..tensor.elements().min(ELEMENTS) {
            tallow_quant::dequantize_at(format, data, index).expect("data has all elements");
        }
    }
    // No byte is of two tensors.
    ranges.retain(|(start, end)| start < end);
    ranges.sort_unstable();
    assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{ranges:?}");

    let Ok(tokenizer) = Tokenizer::from_metadata(file.metadata()) else { return };
    for text in ["ab<s>ba a\u{301}\u{1f600}\t 123", ""] {
        for ids in
            [tokenizer.encode(text, true), tokenizer.encode_ordinary(text, false)].into_iter().flatten()
        {
            assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocab_size()), "{ids:?}");
            let whole = tokenizer.decode(&ids);
            let mut stream = tokenizer.decode_stream();
            let mut parts: String = ids.iter().filter_map(|id| stream.push(*id)).collect();
            parts.extend(stream.finish());
            // Decoding at once takes away the space that encoding put in front.
            assert!(parts == whole || parts.strip_prefix(' ') == Some(&whole), "{parts:?} {whole:?}");
        }
    }
    tokenizer.decode(&[0, 1, u32::MAX]);
});
