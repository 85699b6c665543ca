//! Adapts a user's shader to its bindings: checks its declarations against its registration, and turns its push
//! constants into a buffer.
//!
//! A command buffer is recorded once and replayed with other symbol values, so recorded push constants would be stale.
//! A push-constant block and a storage block have the same layout rules (std430; Vulkan specification, "Offset and
//! Stride Assignment"), so only the storage class changes. The block becomes one more read-only storage buffer, whose
//! bytes are the kernel's entries of the symbol table.

use std::collections::HashMap;

use rspirv::binary::Assemble;
use rspirv::dr::{Instruction, Module, Operand, load_words};
use rspirv::spirv::{Capability, Decoration, ExecutionMode, ExecutionModel, Op, StorageClass, Word};
use tallow_ir::{CustomKernel, DType, DeviceCaps, PushType};

use crate::error::CodegenError;

/// The newest SPIR-V version that Vulkan 1.2 accepts (Vulkan specification, "Versions").
const NEWEST: (u8, u8) = (1, 5);

/// The module with its push constants moved to a buffer. Without `caps`, the device's features are not checked.
///
/// # Errors
/// [`CodegenError::Custom`] if the module differs from `kernel`, or needs a feature that the device lacks.
pub(crate) fn fit(
    words: &[u32],
    kernel: &CustomKernel,
    caps: Option<&DeviceCaps>,
) -> Result<Vec<u32>, CodegenError> {
    fitted(words, kernel, caps).map_err(|why| CodegenError::Custom { name: kernel.name.clone(), why })
}

fn fitted(words: &[u32], kernel: &CustomKernel, caps: Option<&DeviceCaps>) -> Result<Vec<u32>, String> {
    let mut module = load_words(words).map_err(|e| format!("this is no SPIR-V: {e}"))?;
    let version = module.header.as_ref().map(|h| h.version()).ok_or("this SPIR-V has no header")?;
    if version > NEWEST {
        return Err(format!("SPIR-V {}.{} is newer than {}.{}", version.0, version.1, NEWEST.0, NEWEST.1));
    }
    if let Some(capability) = capabilities(&module).find(|c| caps.is_some_and(|caps| !has(*c, caps))) {
        return Err(format!("it needs the capability {capability:?}, which the device lacks"));
    }
    entry_point(&module, kernel)?;
    let types = Types::new(&module);
    let mut bound = vec![false; kernel.inputs.len() + kernel.outputs.len()];
    let mut push = None;
    for variable in module.types_global_values.iter().filter(|i| i.class.opcode == Op::Variable) {
        let (Some(id), Some(Operand::StorageClass(class))) = (variable.result_id, variable.operands.first())
        else {
            return Err("a variable without a storage class".into());
        };
        match class {
            StorageClass::Workgroup | StorageClass::Private | StorageClass::Input => {}
            StorageClass::StorageBuffer => buffer(&types, variable, id, kernel, &mut bound)?,
            StorageClass::PushConstant if push.is_some() => return Err("two blocks of push constants".into()),
            StorageClass::PushConstant => {
                push_members(&types, variable, kernel)?;
                push = Some(id);
            }
            other => {
                return Err(format!("a variable of storage class {other:?}; buffers are the way in and out"));
            }
        }
    }
    if let Some(output) = bound[kernel.inputs.len()..].iter().position(|b| !b) {
        let binding = kernel.inputs.len() + output;
        return Err(format!("output {output} (binding {binding}) is never used by the shader"));
    }
    if let Some(id) = push {
        push_to_buffer(&mut module, id, bound.len() as Word);
    }
    Ok(module.assemble())
}

fn capabilities(module: &Module) -> impl Iterator<Item = Capability> {
    module.capabilities.iter().filter_map(|i| match i.operands.first() {
        Some(Operand::Capability(c)) => Some(*c),
        _ => None,
    })
}

/// Whether a device with `caps` has a capability that the runtime enables.
fn has(capability: Capability, caps: &DeviceCaps) -> bool {
    match capability {
        Capability::Matrix | Capability::Shader | Capability::GroupNonUniform => true,
        Capability::GroupNonUniformVote | Capability::GroupNonUniformArithmetic => caps.subgroup_arithmetic,
        Capability::GroupNonUniformBallot
        | Capability::GroupNonUniformShuffle
        | Capability::GroupNonUniformShuffleRelative => caps.subgroup_shuffle,
        Capability::Float16 => caps.f16,
        Capability::Float64 => caps.float64,
        Capability::Int8 => caps.int8,
        Capability::Int16 => caps.int16,
        Capability::Int64 => caps.int64,
        Capability::StorageBuffer16BitAccess => caps.storage_16bit,
        Capability::StorageBuffer8BitAccess => caps.storage_8bit,
        Capability::AtomicFloat32AddEXT => caps.atomic_float_add,
        Capability::Int64Atomics => caps.atomic_int64,
        Capability::DotProduct
        | Capability::DotProductInput4x8Bit
        | Capability::DotProductInput4x8BitPacked => caps.int_dot,
        Capability::SignedZeroInfNanPreserve => caps.float_controls,
        Capability::VulkanMemoryModel | Capability::VulkanMemoryModelDeviceScope => caps.memory_model,
        Capability::CooperativeMatrixKHR => !caps.cooperative_matrix.is_empty(),
        Capability::BFloat16TypeKHR => caps.bf16,
        _ => false,
    }
}

/// Checks that there is one compute entry point `main` with the registered workgroup size.
fn entry_point(module: &Module, kernel: &CustomKernel) -> Result<(), String> {
    let [entry] = module.entry_points.as_slice() else {
        return Err(format!("{} entry points; it must have one", module.entry_points.len()));
    };
    let main = match entry.operands.as_slice() {
        [
            Operand::ExecutionModel(ExecutionModel::GLCompute),
            Operand::IdRef(_),
            Operand::LiteralString(name),
            ..,
        ] => name == "main",
        _ => false,
    };
    if !main {
        return Err("its entry point must be the compute shader main".into());
    }
    let literal = |o: &Operand| if let Operand::LiteralBit32(x) = o { Some(*x) } else { None };
    let size = module.execution_modes.iter().find_map(|mode| match mode.operands.as_slice() {
        [_, Operand::ExecutionMode(ExecutionMode::LocalSize), x, y, z] => {
            Some([literal(x)?, literal(y)?, literal(z)?])
        }
        _ => None,
    });
    match size {
        Some(size) if size == kernel.workgroup => Ok(()),
        Some(size) => Err(format!("its workgroup is {size:?}, registered as {:?}", kernel.workgroup)),
        None => Err("its workgroup has no literal size".into()),
    }
}

/// Lookup of type instructions and decorations.
struct Types<'a> {
    by_id: HashMap<Word, &'a Instruction>,
    /// Decorations of ids and of their members: id, member, decoration, literal.
    decorations: Vec<(Word, Option<u32>, Decoration, Option<u32>)>,
}

impl<'a> Types<'a> {
    fn new(module: &'a Module) -> Self {
        let by_id = module.types_global_values.iter().filter_map(|i| Some((i.result_id?, i))).collect();
        let literal = |o: Option<&Operand>| match o {
            Some(Operand::LiteralBit32(x)) => Some(*x),
            _ => None,
        };
        let decorations = module.annotations.iter().filter_map(|i| match i.operands.as_slice() {
            [Operand::IdRef(id), Operand::Decoration(d), rest @ ..] => {
                Some((*id, None, *d, literal(rest.first())))
            }
            [Operand::IdRef(id), Operand::LiteralBit32(member), Operand::Decoration(d), rest @ ..] => {
                Some((*id, Some(*member), *d, literal(rest.first())))
            }
            _ => None,
        });
        Types { by_id, decorations: decorations.collect() }
    }

    fn find(&self, id: Word) -> Result<&'a Instruction, String> {
        self.by_id.get(&id).copied().ok_or_else(|| format!("id {id} is not defined"))
    }

    /// The literal of a decoration of an id, or of one of its members; `None` if the decoration is absent.
    fn decoration(&self, id: Word, member: Option<u32>, which: Decoration) -> Option<Option<u32>> {
        let same = |d: &&(Word, Option<u32>, Decoration, Option<u32>)| (d.0, d.1, d.2) == (id, member, which);
        self.decorations.iter().find(same).map(|d| d.3)
    }

    /// The struct that a variable points to, and its members.
    fn block(&self, variable: &Instruction) -> Result<(Word, Vec<Word>), String> {
        let pointer = self.find(variable.result_type.ok_or("a variable without a type")?)?;
        let Some(Operand::IdRef(id)) = pointer.operands.get(1) else {
            return Err("a variable is no pointer".into());
        };
        let block = self.find(*id)?;
        if block.class.opcode != Op::TypeStruct {
            return Err("a buffer that is an array of blocks".into());
        }
        Ok((*id, refs(block)))
    }

    /// The scalar type inside arrays and vectors: its opcode and bits.
    fn scalar(&self, mut id: Word) -> Result<(Op, u32), String> {
        loop {
            let ty = self.find(id)?;
            match (ty.class.opcode, ty.operands.as_slice()) {
                (op @ (Op::TypeInt | Op::TypeFloat), [Operand::LiteralBit32(bits), ..]) => {
                    return Ok((op, *bits));
                }
                (
                    Op::TypeArray | Op::TypeRuntimeArray | Op::TypeVector | Op::TypeMatrix,
                    [Operand::IdRef(of), ..],
                ) => {
                    id = *of;
                }
                (other, _) => {
                    return Err(format!("an element of {other:?}; elements are numbers or vectors"));
                }
            }
        }
    }
}

fn refs(i: &Instruction) -> Vec<Word> {
    i.operands.iter().filter_map(|o| if let Operand::IdRef(id) = o { Some(*id) } else { None }).collect()
}

/// Checks one buffer: set 0, a binding in range, the registered element type, and read-only exactly if it is an input.
fn buffer(
    types: &Types<'_>,
    variable: &Instruction,
    id: Word,
    kernel: &CustomKernel,
    bound: &mut [bool],
) -> Result<(), String> {
    let number = |which| types.decoration(id, None, which).flatten();
    let (Some(set), Some(binding)) = (number(Decoration::DescriptorSet), number(Decoration::Binding)) else {
        return Err("a buffer without a set and a binding".into());
    };
    let at = binding as usize;
    if set != 0 || at >= bound.len() {
        let last = bound.len() - 1;
        return Err(format!(
            "a buffer at set {set}, binding {binding}; the kernel has set 0, bindings 0 to {last}"
        ));
    }
    if std::mem::replace(&mut bound[at], true) {
        return Err(format!("two buffers at binding {binding}"));
    }
    let (block, members) = types.block(variable)?;
    let is_input = at < kernel.inputs.len();
    let dtype = if is_input { kernel.inputs[at] } else { kernel.outputs[at - kernel.inputs.len()] };
    for member in &members {
        let (op, bits) = types.scalar(*member)?;
        if !holds(op, bits, dtype) {
            let kind = if op == Op::TypeFloat { "float" } else { "int" };
            return Err(format!("binding {binding} holds {kind}{bits}, registered as {dtype}"));
        }
    }
    let marked = |which| {
        let all = (0..members.len() as u32).all(|m| types.decoration(block, Some(m), which).is_some());
        all || types.decoration(id, None, which).is_some()
    };
    match (is_input, marked(Decoration::NonWritable)) {
        (true, false) => Err(format!("binding {binding} is an input and must be readonly")),
        (false, true) => Err(format!("binding {binding} is an output and cannot be readonly")),
        _ => Ok(()),
    }
}

/// Whether elements of `dtype` may be declared as a number of this kind and width: as themselves, as integers of equal
/// width where shaders have no such float, or packed into 32-bit words.
fn holds(op: Op, bits: u32, dtype: DType) -> bool {
    let width = dtype.size().map_or(0, |bytes| 8 * bytes as u32);
    let packed = op == Op::TypeInt && bits == 32 && width < 32;
    packed
        || bits == width
            && match dtype {
                DType::U8 | DType::U32 | DType::I16 | DType::I32 | DType::I64 => op == Op::TypeInt,
                DType::F16 | DType::F32 | DType::F64 => op == Op::TypeFloat,
                DType::BF16 | DType::F8E4M3 => true,
                DType::Block(_) => false,
            }
}

/// Checks the push constants: consecutive 32-bit members of the registered types; trailing ones may be missing.
fn push_members(types: &Types<'_>, variable: &Instruction, kernel: &CustomKernel) -> Result<(), String> {
    let (block, members) = types.block(variable)?;
    for (m, member) in members.into_iter().enumerate() {
        let offset = types.decoration(block, Some(m as u32), Decoration::Offset).flatten();
        let ty = types.find(member)?;
        let found = match (ty.class.opcode, ty.operands.first()) {
            (Op::TypeInt, Some(Operand::LiteralBit32(32))) => Some(PushType::Int),
            (Op::TypeFloat, Some(Operand::LiteralBit32(32))) => Some(PushType::Float),
            _ => None,
        };
        if offset != Some(4 * m as u32) || found != kernel.push.get(m).copied() {
            return Err(format!(
                "push constant {m} is not of 32 bits, as {:?} at byte {}",
                kernel.push.get(m),
                4 * m
            ));
        }
    }
    Ok(())
}

/// Moves the push-constant block `id` to a storage buffer at `binding`.
fn push_to_buffer(module: &mut Module, id: Word, binding: Word) {
    for i in &mut module.types_global_values {
        if matches!(i.class.opcode, Op::Variable | Op::TypePointer | Op::TypeForwardPointer) {
            for operand in &mut i.operands {
                if *operand == Operand::StorageClass(StorageClass::PushConstant) {
                    *operand = Operand::StorageClass(StorageClass::StorageBuffer);
                }
            }
        }
    }
    let decorate = |which, value: Option<Word>| {
        let mut operands = vec![Operand::IdRef(id), Operand::Decoration(which)];
        operands.extend(value.map(Operand::LiteralBit32));
        Instruction::new(Op::Decorate, None, None, operands)
    };
    module.annotations.push(decorate(Decoration::DescriptorSet, Some(0)));
    module.annotations.push(decorate(Decoration::Binding, Some(binding)));
    module.annotations.push(decorate(Decoration::NonWritable, None));
}
