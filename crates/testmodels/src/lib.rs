//! Where tests find the language models.
//!
//! [`model`] gives the path of a file of `models/`. storyteller-nano in Q4_0 and Q4_K_M is not among those, as the project's
//! own quantizer makes it from the F16 file: the first test that asks writes it to `test-models/` of the target directory,
//! and the others find it there. Its SHA-256 is that of the file that llama.cpp made, and is checked each time.
//!
//! [`encoder`] makes a small encoder with a tokenizer, and broken ones.
//!
//! Only tests depend on this crate.

mod encoder;

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use sha2::{Digest, Sha256};
use tallow_gguf::{Format, GgufFile, GgufWriter, TensorSpec, Value};

pub use encoder::encoder;

/// A model that is made: what `llama-quantize storyteller-nano-f16.gguf NAME.gguf TYPE` writes.
struct Made {
    name: &'static str,
    /// The number of the type in the metadata.
    file_type: u32,
    /// The format of a tensor with several axes.
    format: fn(&str) -> Format,
    bytes: u64,
    /// SHA-256 of the file.
    hash: &'static str,
}

const MADE: [Made; 2] = [
    Made {
        name: "storyteller-nano-Q4_0",
        file_type: 2,
        // The embedding is the projection to the vocabulary, too, which bears rounding worst.
        format: |tensor| if tensor == "token_embd.weight" { Format::Q6_K } else { Format::Q4_0 },
        bytes: 3_774_880,
        hash: "fc78a9082240167d73911c53b67cc47c0ce98da7da74330f21d6ba1646614be0",
    },
    Made {
        name: "storyteller-nano-Q4_K_M",
        file_type: 15,
        // Of four layers, the last two have more bits for what bears rounding badly.
        format: |tensor| {
            let is_second_half = ["blk.2.", "blk.3."].iter().any(|layer| tensor.starts_with(layer));
            let is_sensitive = ["attn_v.weight", "ffn_down.weight"].iter().any(|role| tensor.ends_with(role));
            match tensor == "token_embd.weight" || (is_second_half && is_sensitive) {
                true => Format::Q6_K,
                false => Format::Q4_K,
            }
        },
        bytes: 3_893_152,
        hash: "54794742f59b72ba408420c578d1be7ee8b4acb4d225548012fea3c53301855e",
    },
];

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The file of the model `name`, such as `storyteller-nano-f16`. Tests may ask at the same time, in threads and in
/// processes.
///
/// # Panics
/// When there is no such model, or it cannot be made: then a test fails, and says why.
pub fn model(name: &str) -> PathBuf {
    // Also where somebody has put a file of this name into `models/`, whose bytes nobody checked.
    if let Some(made) = MADE.iter().find(|made| made.name == name) {
        let folder = target().join("test-models");
        return made
            .place(&folder)
            .unwrap_or_else(|error| panic!("cannot make {name} in {}: {error}", folder.display()));
    }
    let stored = models().join(format!("{name}.gguf"));
    assert!(stored.exists(), "neither {} nor a model that is made", stored.display());
    stored
}

/// The root of the repository. Not by way of `..`, as tests that were copied to another machine have the models there
/// and no sources.
fn root() -> &'static Path {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.ancestors().nth(2).expect("invariant: the package lies two levels below the root")
}

fn models() -> PathBuf {
    root().join("models")
}

/// The target directory, as the environment names it or else in its usual place.
fn target() -> PathBuf {
    root().join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

impl Made {
    /// The file in `folder`, made unless it is there and whole.
    fn place(&self, folder: &Path) -> Result<PathBuf> {
        let path = folder.join(format!("{}.gguf", self.name));
        let has_size = fs::metadata(&path).is_ok_and(|file| file.len() == self.bytes);
        if has_size && hash(&fs::read(&path)?) == self.hash {
            return Ok(path);
        }
        let bytes = self.quantized(&GgufFile::open(models().join("storyteller-nano-f16.gguf"))?)?;
        let (size, got) = (bytes.len(), hash(&bytes));
        if got != self.hash {
            let wanted = format!("{} of {}", self.bytes, self.hash);
            return Err(format!(
                "the quantizer's file differs from llama.cpp's: {size} bytes of {got}, not {wanted}"
            )
            .into());
        }
        fs::create_dir_all(folder)?;
        // Others may write the same file: each has a name of its own, and whoever comes last replaces equal bytes.
        static PARTS: AtomicUsize = AtomicUsize::new(0);
        let number = PARTS.fetch_add(1, Ordering::Relaxed);
        let part = folder.join(format!("{}.{}.{number}.part", self.name, std::process::id()));
        let placed = fs::write(&part, bytes).and_then(|()| fs::rename(&part, &path));
        if placed.is_err() {
            // Nothing more can be done about a file that cannot be removed.
            let _ = fs::remove_file(&part);
        }
        placed?;
        Ok(path)
    }

    /// The model as llama-quantize writes it: metadata, formats and order of the tensors.
    fn quantized(&self, source: &GgufFile) -> Result<Vec<u8>> {
        let mut metadata = source.metadata().clone();
        for (key, value) in [("general.quantization_version", 2), ("general.file_type", self.file_type)] {
            metadata.remove(key);
            metadata.insert(key, Value::U32(value));
        }
        let mut tensors: Vec<_> = source.tensors().collect();
        // By layer, and those of none first.
        let layer = |name: &str| {
            name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse::<u32>().ok())
        };
        tensors.sort_by_key(|tensor| (layer(&tensor.name), &tensor.name));
        let format =
            |name: &str, shape: &[usize]| if shape.len() > 1 { (self.format)(name) } else { Format::F32 };
        let spec = |tensor: &&tallow_gguf::TensorInfo| TensorSpec {
            name: tensor.name.clone(),
            shape: tensor.shape.clone(),
            format: format(&tensor.name, &tensor.shape),
        };
        let specs: Vec<TensorSpec> = tensors.iter().map(spec).collect();
        let mut writer = GgufWriter::create(Vec::new(), &metadata, specs.clone())?;
        for (tensor, spec) in tensors.into_iter().zip(specs) {
            let mut values = vec![0.0; tensor.elements()];
            tallow_quant::dequantize(tensor.format()?, source.tensor_data(tensor)?, &mut values)?;
            writer.tensor(&spec.name, &tallow_quant::quantize(spec.format, &values)?)?;
        }
        Ok(writer.finish()?)
    }
}

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names in `folder`.
    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_file_is_made_once_and_again_when_it_is_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("not/there/yet");
        let made = &MADE[0];
        let path = made.place(&folder).unwrap();
        assert_eq!(hash(&fs::read(&path).unwrap()), made.hash);
        let modified = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
        let first = modified(&path);
        assert_eq!(made.place(&folder).unwrap(), path);
        assert_eq!(modified(&path), first, "made twice");
        let whole = fs::read(&path).unwrap();
        let mut changed = whole.clone();
        changed[2_000_000] ^= 1;
        for damaged in [&whole[..whole.len() - 1], &changed, &[]] {
            fs::write(&path, damaged).unwrap();
            made.place(&folder).unwrap();
            assert!(fs::read(&path).unwrap() == whole, "{} bytes were left as they were", damaged.len());
        }
        assert_eq!(names(&folder), ["storyteller-nano-Q4_0.gguf"]);
    }

    #[test]
    fn many_make_it_at_the_same_time() {
        let folder = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let path = MADE[0].place(folder.path()).unwrap();
                    assert_eq!(hash(&fs::read(path).unwrap()), MADE[0].hash);
                });
            }
        });
        assert_eq!(names(folder.path()), ["storyteller-nano-Q4_0.gguf"]);
    }

    #[test]
    fn stored_files_are_where_they_are() {
        assert!(model("storyteller-nano-f16").ends_with("models/storyteller-nano-f16.gguf"));
        for made in &MADE {
            assert!(model(made.name).ends_with(format!("test-models/{}.gguf", made.name)));
        }
    }

    #[test]
    #[should_panic(expected = "neither")]
    fn other_names_are_refused() {
        model("storyteller-nano-Q9_9");
    }
}
