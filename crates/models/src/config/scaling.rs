//! How rope's frequencies are stretched.

use tallow_gguf::{Value, optional};

use super::Keys;
use crate::error::{Error, Result};
use crate::rope::RopeScaling;

/// The keys `rope.scaling.*` and the older `rope.scale_linear`.
pub(super) fn read(keys: &Keys<'_>, context: usize) -> Result<RopeScaling> {
    let (metadata, architecture) = (keys.metadata, keys.architecture);
    let key = |name: &str| format!("{}.rope.scaling.{name}", architecture.name());
    let float = |name: &str, default: f32| -> Result<f32> {
        let key = key(name);
        let value = optional(metadata.get_f32(&key))?.unwrap_or(default);
        if value.is_finite() && value >= 0.0 {
            return Ok(value);
        }
        Err(Error::Hyperparameter { key, why: format!("{value} is not a number of 0 or more") })
    };
    let older =
        optional(metadata.get_f32(&format!("{}.rope.scale_linear", architecture.name())))?.unwrap_or(0.0);
    // 0 stands for "not given", as in llama.cpp.
    let factor = match float("factor", older)? {
        0.0 => 1.0,
        factor => factor,
    };
    let attention_factor = float("attn_factor", 1.0)?;
    let kind = match metadata.get(&key("type")) {
        None => "linear",
        Some(Value::String(kind)) => kind,
        Some(_) => metadata.get_str(&key("type"))?,
    };
    match kind {
        "none" => Ok(RopeScaling::None),
        "linear" if factor == 1.0 => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor }),
        "yarn" => {
            let original = optional(metadata.get_u32(&key("original_context_length")))?;
            Ok(RopeScaling::Yarn {
                factor,
                original_context: original.filter(|n| *n > 0).map_or(context, |n| n as usize),
                attention_factor,
                extrapolation: float("yarn_ext_factor", 1.0)?,
                beta_fast: float("yarn_beta_fast", 32.0)?,
                beta_slow: float("yarn_beta_slow", 1.0)?,
                rounds: true,
                log_multiplier: float("yarn_log_multiplier", 0.0)?,
            })
        }
        other => Err(Error::Hyperparameter {
            key: key("type"),
            why: format!("{other:?} is not supported; none, linear and yarn are"),
        }),
    }
}
