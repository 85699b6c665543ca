//! The little that must be read from a SPIR-V module: is it whole, its version, workgroup size, bindings. And the little that
//! is changed: the hint to unroll loops.
//!
//! Source: SPIR-V specification, sections 2.3 and 2.4 (physical and logical layout), 3.3 (execution models),
//! 3.6 (execution modes), 3.20 (decorations) and 3.23 (loop control). A module that passes may still be invalid; validity is the
//! compiler's part.

/// What a module's words say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ModuleInfo {
    /// Major and minor version.
    pub(super) version: (u32, u32),
    /// Workgroup size, where the module states it as literals.
    pub(super) local_size: Option<[u32; 3]>,
    /// One more than the highest binding; 0 without any.
    pub(super) bindings: u32,
    /// The highest descriptor set.
    pub(super) last_set: u32,
}

const MAGIC: u32 = 0x0723_0203;
const OP_ENTRY_POINT: u32 = 15;
const OP_EXECUTION_MODE: u32 = 16;
const OP_FUNCTION_END: u32 = 56;
const OP_DECORATE: u32 = 71;
const OP_LOOP_MERGE: u32 = 246;
const MODEL_GL_COMPUTE: u32 = 5;
const MODE_LOCAL_SIZE: u32 = 17;
const DECORATION_BINDING: u32 = 33;
const DECORATION_DESCRIPTOR_SET: u32 = 34;
const LOOP_UNROLL: u32 = 1;
const LOOP_DONT_UNROLL: u32 = 2;
/// The entry point's name, "main" and its terminator, as it lies in words.
const MAIN: [u32; 2] = [u32::from_le_bytes(*b"main"), 0];

/// Reads a module's header and walks its instructions; the error says what is malformed.
pub(super) fn inspect(words: &[u32]) -> Result<ModuleInfo, String> {
    if words.len() < 5 {
        return Err(format!("{} words are no SPIR-V module", words.len()));
    }
    if words[0] != MAGIC {
        return Err(format!("{:#010x} is not SPIR-V's magic number", words[0]));
    }
    let mut info = ModuleInfo {
        version: (words[1] >> 16 & 0xff, words[1] >> 8 & 0xff),
        local_size: None,
        bindings: 0,
        last_set: 0,
    };
    let (mut has_main, mut last_opcode) = (false, 0);
    let mut at = 5;
    while at < words.len() {
        let (length, opcode) = ((words[at] >> 16) as usize, words[at] & 0xffff);
        if length == 0 || at + length > words.len() {
            return Err(format!("the instruction at word {at} has {length} words"));
        }
        if opcode == OP_ENTRY_POINT && length >= 5 && words[at + 1] == MODEL_GL_COMPUTE {
            has_main |= words[at + 3..at + 5] == MAIN;
        }
        if opcode == OP_EXECUTION_MODE && length == 6 && words[at + 2] == MODE_LOCAL_SIZE {
            info.local_size = Some([words[at + 3], words[at + 4], words[at + 5]]);
        }
        if opcode == OP_DECORATE && length == 4 {
            match words[at + 2] {
                DECORATION_BINDING => info.bindings = info.bindings.max(words[at + 3].saturating_add(1)),
                DECORATION_DESCRIPTOR_SET => info.last_set = info.last_set.max(words[at + 3]),
                // Other decorations say nothing of the pipeline's layout.
                _ => {}
            }
        }
        last_opcode = opcode;
        at += length;
    }
    if !has_main {
        return Err("it has no compute entry point called main".to_string());
    }
    if last_opcode != OP_FUNCTION_END {
        return Err("it ends before the end of its last function".to_string());
    }
    Ok(info)
}

/// The module with `DontUnroll` in place of the hint `Unroll` of each loop that has no other hint. Words that are no
/// instructions stay as they are.
///
/// Mesa's lavapipe compiles a kernel with LLVM as a coroutine that stops at barriers. For long kernels that is most of the time
/// of a test, and unrolled loops make them long.
pub(super) fn with_rolled_loops(words: &[u32]) -> Vec<u32> {
    let mut words = words.to_vec();
    let mut at = 5;
    while let Some(&first) = words.get(at) {
        let (length, opcode) = ((first >> 16) as usize, first & 0xffff);
        if length == 0 {
            break;
        }
        if opcode == OP_LOOP_MERGE
            && length >= 4
            && let Some(control) = words.get_mut(at + 3)
            && *control == LOOP_UNROLL
        {
            *control = LOOP_DONT_UNROLL;
        }
        at += length;
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Header, entry point, workgroup size, one function's end.
    fn module() -> Vec<u32> {
        let mut words = vec![MAGIC, 0x0001_0500, 0, 10, 0];
        words.extend([5 << 16 | OP_ENTRY_POINT, MODEL_GL_COMPUTE, 4, MAIN[0], MAIN[1]]);
        words.extend([6 << 16 | OP_EXECUTION_MODE, 4, MODE_LOCAL_SIZE, 64, 2, 1]);
        words.extend([4 << 16 | OP_DECORATE, 9, DECORATION_BINDING, 2]);
        words.extend([4 << 16 | OP_DECORATE, 9, DECORATION_DESCRIPTOR_SET, 1]);
        words.push(1 << 16 | OP_FUNCTION_END);
        words
    }

    #[test]
    fn what_a_module_says_is_read() {
        let mut words = module();
        let mut expected =
            ModuleInfo { version: (1, 5), local_size: Some([64, 2, 1]), bindings: 3, last_set: 1 };
        assert_eq!(inspect(&words), Ok(expected));
        words.drain(10..24);
        expected = ModuleInfo { local_size: None, bindings: 0, last_set: 0, ..expected };
        assert_eq!(inspect(&words), Ok(expected));
    }

    #[test]
    fn loops_are_rolled() {
        let with = |control: u32| {
            let mut words = module();
            let end = words.len() - 1;
            // Merge block, continue target, control; partial counts (256) have an operand.
            words.splice(end..end, [5 << 16 | OP_LOOP_MERGE, 7, 8, control, 4]);
            words.splice(end..end, [4 << 16 | OP_LOOP_MERGE, 7, 8, 0]);
            words
        };
        assert_eq!(with_rolled_loops(&with(LOOP_UNROLL)), with(LOOP_DONT_UNROLL));
        // A partial count must not meet the opposite.
        for stays in [
            with(0),
            with(LOOP_UNROLL | 256),
            with(LOOP_DONT_UNROLL),
            module(),
            vec![],
            vec![1, 2],
            vec![0; 9],
        ] {
            assert_eq!(with_rolled_loops(&stays), stays);
        }
        let cut = [&module()[..24], &[4 << 16 | OP_LOOP_MERGE, 7]].concat();
        assert_eq!(with_rolled_loops(&cut), cut);
    }

    #[test]
    fn malformed_modules_are_errors() {
        assert!(inspect(&[]).unwrap_err().contains("no SPIR-V"));
        assert!(inspect(&[1, 2, 3, 4, 5]).unwrap_err().contains("magic"));
        for bad in [0, 7 << 16, 2 << 16 | OP_FUNCTION_END] {
            let mut words = module();
            *words.last_mut().unwrap() = bad;
            assert!(inspect(&words).unwrap_err().contains("word 24"));
        }
        for length in 5..module().len() {
            assert!(inspect(&module()[..length]).is_err(), "cut to {length} words");
        }
        let mut words = module();
        words[8] += 1;
        assert!(inspect(&words).unwrap_err().contains("entry point"));
    }
}
