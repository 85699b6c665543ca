//! What a SPIR-V module demands of a device, read from its words (SPIR-V specification, 2.3 and 3.42).

use std::collections::HashMap;

use tallow_codegen::{Algorithm, Kernel, Source};
use tallow_ir::DeviceCaps;
use tallow_ir::caps::MatrixElement;

const OP_EXECUTION_MODE: u32 = 16;
const OP_CAPABILITY: u32 = 17;
const OP_TYPE_INT: u32 = 21;
const OP_TYPE_FLOAT: u32 = 22;
const OP_TYPE_VECTOR: u32 = 23;
const OP_TYPE_ARRAY: u32 = 28;
const OP_TYPE_POINTER: u32 = 32;
const OP_CONSTANT: u32 = 43;
const OP_VARIABLE: u32 = 59;
const OP_ACCESS_CHAIN: u32 = 65;
const OP_DECORATE: u32 = 71;
const OP_ATOMIC_FADD: u32 = 6035;
const LOCAL_SIZE: u32 = 17;
const ALIASED: u32 = 20;
const BINDING: u32 = 33;
const WORKGROUP: u32 = 4;

/// The instructions: opcode and operands.
fn instructions(words: &[u32]) -> Vec<(u32, &[u32])> {
    let (mut at, mut all) = (5, vec![]);
    while at < words.len() {
        let count = (words[at] >> 16) as usize;
        all.push((words[at] & 0xffff, &words[at + 1..at + count]));
        at += count;
    }
    all
}

/// The bindings whose variables say that another one may be the same memory.
pub fn aliased(words: &[u32]) -> Vec<u32> {
    let decorations = instructions(words).into_iter().filter(|(opcode, _)| *opcode == OP_DECORATE);
    let decorations: Vec<&[u32]> = decorations.map(|(_, operands)| operands).collect();
    let is_aliased = |variable: u32| decorations.iter().any(|d| **d == [variable, ALIASED]);
    let binding = |d: &&[u32]| match **d {
        [variable, BINDING, binding] if is_aliased(variable) => Some(binding),
        _ => None,
    };
    let mut found: Vec<u32> = decorations.iter().filter_map(binding).collect();
    found.sort_unstable();
    found
}

/// Whether the device has a capability; an error for one that kernels have no reason to declare.
fn allowed(capability: u32, caps: &DeviceCaps) -> Result<bool, String> {
    Ok(match capability {
        1 => true, // Shader
        9 => caps.f16,
        10 => caps.float64,
        11 => caps.int64,
        12 => caps.atomic_int64, // Int64Atomics
        22 => caps.int16,
        39 => caps.int8,
        // Required of every Vulkan 1.1 device in compute shaders.
        61 => true,                          // GroupNonUniform
        62 | 63 => caps.subgroup_arithmetic, // Vote, Arithmetic
        64 | 65 => caps.subgroup_shuffle,
        4433 => caps.storage_16bit,                  // StorageBuffer16BitAccess
        5345 => caps.memory_model,                   // VulkanMemoryModel
        6022 => !caps.cooperative_matrix.is_empty(), // CooperativeMatrixKHR
        5116 => caps.bf16,                           // BFloat16TypeKHR
        // BFloat16CooperativeMatrixKHR
        5118 => caps.cooperative_matrix.iter().any(|shape| shape.a == MatrixElement::Bf16),
        // CooperativeMatrix: reductions, conversions, operations on elements, tensors, blocks; TensorAddressing (all NV)
        5430..=5434 | 5439 => caps.cooperative_matrix2,
        5347 => caps.buffer_device_address, // PhysicalStorageBufferAddresses
        4448 => caps.storage_8bit,          // StorageBuffer8BitAccess
        4466 => caps.float_controls,        // SignedZeroInfNanPreserve
        6018 | 6019 => caps.int_dot,        // DotProductInput4x8BitPacked, DotProduct
        // AtomicFloat32AddEXT, for either memory; `violations` looks at the memory of each sum.
        6033 => caps.atomic_float_add || caps.atomic_float_add_shared,
        other => return Err(format!("unexpected SPIR-V capability {other}")),
    })
}

/// Where the module demands more than the device has, and where the kernel's data disagree with it.
pub fn violations(words: &[u32], kernel: &Kernel, caps: &DeviceCaps) -> Vec<String> {
    let mut wrong = vec![];
    let mut bytes: HashMap<u32, u64> = HashMap::new();
    let mut constants: HashMap<u32, u64> = HashMap::new();
    let mut pointees: HashMap<u32, u32> = HashMap::new();
    // Storage classes of pointer types, and of pointers.
    let mut classes: HashMap<u32, u32> = HashMap::new();
    let mut local_size = [0; 3];
    let mut shared = 0;
    for (op, x) in instructions(words) {
        match op {
            OP_CAPABILITY => match allowed(x[0], caps) {
                Ok(true) => {}
                Ok(false) => wrong.push(format!("the device lacks SPIR-V capability {}", x[0])),
                Err(e) => wrong.push(e),
            },
            OP_EXECUTION_MODE if x[1] == LOCAL_SIZE => local_size.copy_from_slice(&x[2..5]),
            OP_TYPE_INT | OP_TYPE_FLOAT => drop(bytes.insert(x[0], u64::from(x[1]) / 8)),
            OP_CONSTANT => drop(constants.insert(x[1], u64::from(x[2]))),
            OP_TYPE_VECTOR => {
                if let Some(size) = bytes.get(&x[1]).copied() {
                    bytes.insert(x[0], size * u64::from(x[2]));
                }
            }
            OP_TYPE_ARRAY => {
                if let (Some(size), Some(length)) = (bytes.get(&x[1]).copied(), constants.get(&x[2])) {
                    bytes.insert(x[0], size * length);
                }
            }
            OP_TYPE_POINTER => {
                pointees.insert(x[0], x[2]);
                classes.insert(x[0], x[1]);
            }
            OP_ACCESS_CHAIN => drop(classes.get(&x[0]).copied().map(|class| classes.insert(x[1], class))),
            OP_ATOMIC_FADD => {
                let is_shared = classes.get(&x[2]) == Some(&WORKGROUP);
                if !(if is_shared { caps.atomic_float_add_shared } else { caps.atomic_float_add }) {
                    wrong.push(format!("an atomic sum of floats that the device lacks, shared: {is_shared}"));
                }
            }
            OP_VARIABLE if x[2] == WORKGROUP => match pointees.get(&x[0]).and_then(|p| bytes.get(p)) {
                Some(size) => shared += size,
                None => wrong.push("a shared variable of unknown size".into()),
            },
            _ => {}
        }
    }
    if local_size != kernel.workgroup {
        wrong.push(format!("workgroup {local_size:?}, the kernel says {:?}", kernel.workgroup));
    }
    let invocations: u32 = local_size.iter().product();
    if invocations > caps.max_workgroup_invocations
        || (0..3).any(|i| local_size[i] > caps.max_workgroup_size[i])
    {
        wrong.push(format!("workgroup {local_size:?} exceeds the device's"));
    }
    if shared > u64::from(caps.shared_memory_bytes) {
        wrong.push(format!("{shared} bytes of shared memory, the device has {}", caps.shared_memory_bytes));
    }
    // Attention cannot be split, and over a symbolic number of keys it needs q, k, v, a bias, the result and the
    // table; with sinks, these too. Neither can one product or gather, which over a symbolic number of rows of a format
    // with a codebook needs two operands, the codebooks, the result and the table; nor an indexed addition over a symbolic
    // number of rows, which needs three operands, the result and the table. No device is known to have as few as four.
    let codebooks = kernel.bindings.iter().any(|binding| binding.source == Source::Codebooks);
    let whole = matches!(kernel.schedule.algorithm, Algorithm::Attention | Algorithm::TiledAttention);
    let adds_by_index = kernel.schedule.algorithm == Algorithm::IndexAdd;
    let has_sinks = kernel.glsl.contains("sinks=true");
    let needed = match (whole, codebooks || adds_by_index) {
        (true, _) => 6 + u32::from(has_sinks),
        (false, true) => 5,
        (false, false) => 0,
    };
    let (count, limit) = (kernel.bindings.len(), caps.max_storage_buffers.max(needed) as usize);
    if count > limit {
        wrong.push(format!("{count} storage buffers, the device binds {limit}"));
    }
    wrong
}
