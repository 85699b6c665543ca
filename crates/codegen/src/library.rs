//! The library functions of `templates/math.glsl` and `math64.glsl`, and the record of what a kernel calls.

use std::collections::BTreeSet;
use std::fmt::Display;

use minijinja::context;

use crate::error::CodegenError;
use crate::glsl::Glsl;
use crate::template::render;

/// A library function. The templates define it for all argument types that a kernel declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Function {
    name: &'static str,
    /// The functions that its definition calls, or whose definition includes it.
    needs: &'static [Function],
    /// The same for its definition for `double`.
    needs_64: &'static [Function],
}

/// One row per function: name, needs and needs for `double`.
macro_rules! functions {
    ($($function:ident $name:literal [$($needs:ident)*] [$($needs_64:ident)*])*) => {
        $(pub const $function: Function =
            Function { name: $name, needs: &[$($needs),*], needs_64: &[$($needs_64),*] };)*
        #[cfg(test)]
        const ALL: &[Function] = &[$($function),*];
    };
}

functions! {
    ACOS_OF "acos_of" [ATAN_OF] []
    ASIN_OF "asin_of" [ATAN_OF] []
    ATAN_OF "atan_of" [IS_NAN] []
    BITS_BF16 "bits_bf16" [ROUND_BF16] []
    BITS_F8 "bits_f8" [ROUND_F8] []
    BYTE_OF "byte_of" [IS_NAN LOW_BYTE] []
    COSH_OF "cosh_of" [IS_NAN] [EXP_OF]
    COS_OF "cos_of" [] [QUARTER_OF]
    DIV_BY "div_by" [] []
    DIV_OF "div_of" [] []
    ERF_OF "erf_of" [IS_NAN] [EXP_OF]
    EXP2_OF "exp2_of" [] [IS_NAN POW2_OF]
    EXPM1_OF "expm1_of" [] [EXP_OF]
    EXP_OF "exp_of" [] [POW2_OF]
    IS_NAN "is_nan" [] []
    LOG1P_OF "log1p_of" [IS_NAN] [LOG_OF SPLIT_OF]
    LOG2_OF "log2_of" [] [LOG_OF SPLIT_OF]
    LOG_OF "log_of" [] [SPLIT_OF]
    LOW_BYTE "low_byte" [] []
    MAX_OF "max_of" [IS_NAN] []
    MIN_OF "min_of" [IS_NAN] []
    NARROW_BF16 "narrow_bf16" [BITS_BF16] []
    NARROW_F16 "narrow_f16" [] []
    NARROW_F8 "narrow_f8" [BITS_F8] []
    NARROW_I16 "narrow_i16" [] []
    NARROW_U8 "narrow_u8" [] []
    NUMBER "number" [IS_NAN] []
    ODD_INT "odd_int" [] []
    ODD_OF "odd_of" [IS_NAN] []
    PHILOX_OF "philox_of" [] []
    POW2_OF "pow2_of" [] [IS_NAN]
    POW_OF "pow_of" [IS_NAN] [EXP_OF LOG_OF]
    QUARTER_OF "quarter_of" [] []
    REM_OF "rem_of" [] []
    ROUND_BF16 "round_bf16" [IS_NAN] []
    ROUND_F16 "round_f16" [] []
    ROUND_F8 "round_f8" [IS_NAN VALUE_F8] []
    ROUND_OF "round_of" [] []
    RSQRT_OF "rsqrt_of" [] []
    SHL_OF "shl_of" [] []
    SHR_OF "shr_of" [] []
    SIGN_OF "sign_of" [IS_NAN] []
    SINH_OF "sinh_of" [IS_NAN] [EXPM1_OF EXP_OF]
    SIN_OF "sin_of" [] [QUARTER_OF]
    SORT_KEY "sort_key" [IS_NAN] []
    SPLIT_OF "split_of" [] []
    TANH_OF "tanh_of" [] [EXPM1_OF IS_NAN]
    TAN_OF "tan_of" [] [QUARTER_OF]
    TO_INT "to_int" [IS_NAN] []
    TO_LONG "to_long" [IS_NAN] []
    TO_UINT "to_uint" [IS_NAN] []
    VALUE_F8 "value_f8" [] []
}

/// What a kernel calls and declares that needs definitions, extensions or execution modes. Generators record it together
/// with the text that they emit.
#[derive(Clone, Debug, Default)]
pub struct Uses {
    functions: BTreeSet<Function>,
    /// Whether there are subgroup operations.
    pub subgroups: bool,
    /// Whether there are variables of type `int64_t` or `uint64_t`.
    pub long: bool,
    /// Whether there are variables of type `double`.
    pub double: bool,
}

impl Uses {
    /// Records a function that a template calls.
    pub fn add(&mut self, function: Function) {
        self.functions.insert(function);
    }

    /// Records a call and returns its expression.
    pub fn call(&mut self, function: Function, args: impl Display) -> String {
        self.add(function);
        format!("{}({args})", function.name)
    }

    /// Records a variable's type and returns the type's name.
    pub fn ty(&mut self, ty: Glsl) -> &'static str {
        match ty {
            Glsl::Float | Glsl::Uint | Glsl::Int => {}
            Glsl::Long => self.long = true,
            Glsl::Double => self.double = true,
        }
        ty.name()
    }

    /// Adds what other text uses.
    pub fn extend(&mut self, other: Uses) {
        let Uses { functions, subgroups, long, double } = other;
        self.functions.extend(functions);
        self.subgroups |= subgroups;
        self.long |= long;
        self.double |= double;
    }

    /// The definitions of all functions that the kernel calls, and of those that they call.
    pub fn definitions(&self) -> Result<String, CodegenError> {
        let mut used = BTreeSet::new();
        let mut open: Vec<Function> = self.functions.iter().copied().collect();
        while let Some(function) = open.pop() {
            if used.insert(function.name) {
                open.extend(function.needs);
                open.extend(function.needs_64.iter().filter(|_| self.double));
            }
        }
        if used.is_empty() { Ok(String::new()) } else { defined(&used, self.long, self.double) }
    }
}

/// The definitions of exactly these functions.
fn defined(used: &BTreeSet<&'static str>, long: bool, double: bool) -> Result<String, CodegenError> {
    let mut text = render("math.glsl", context! { used, long, double })? + "\n";
    if double {
        text += &(render("math64.glsl", context! { used })? + "\n");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// What the templates define for one function.
    struct Definition {
        /// The functions defined, with their types.
        defines: BTreeSet<(String, String)>,
        /// The names called, or defined.
        calls: BTreeSet<String>,
    }

    impl Definition {
        fn of(function: Function, double: bool) -> Definition {
            let text = defined(&BTreeSet::from([function.name]), true, double).expect("a template");
            let (mut defines, mut calls) = (BTreeSet::new(), BTreeSet::new());
            for line in text.lines().filter_map(|line| line.split("//").next()) {
                let heads =
                    line.split('(').map(|head| head.rsplit(|c: char| !c.is_alphanumeric() && c != '_'));
                calls.extend(heads.filter_map(|mut words| words.next()).map(String::from));
                if let Some((ty, name)) = line.split('(').next().and_then(|head| head.split_once(' '))
                    && !ty.is_empty()
                {
                    defines.insert((ty.into(), name.into()));
                }
            }
            Definition { defines, calls }
        }

        fn defines(&self, name: &str) -> bool {
            self.defines.iter().any(|(_, own)| own == name)
        }
    }

    /// The functions that the templates show a function to need: those that its definition calls, and those whose
    /// definition includes it or a helper that it calls.
    fn shown(function: Function, double: bool, all: &BTreeMap<&str, Definition>) -> BTreeSet<String> {
        let own = &all[function.name];
        let mut needs = BTreeSet::new();
        let known = |name: &str| all.contains_key(name);
        for name in own.calls.iter().filter(|name| !own.defines(name)) {
            let hosts = all.iter().filter(|(_, other)| other.defines(name)).map(|(host, _)| host.to_string());
            needs.extend(if known(name) { vec![name.clone()] } else { hosts.collect() });
        }
        let mut add_hosts = |defines: &dyn Fn(&Definition) -> bool| {
            let hosts = all.iter().filter(|(_, other)| !defines(own) && defines(other));
            needs.extend(hosts.map(|(host, _)| host.to_string()));
        };
        add_hosts(&|definition| definition.defines(function.name));
        if double {
            let overload = ("double".to_string(), function.name.to_string());
            add_hosts(&|definition| definition.defines.contains(&overload));
        }
        needs
    }

    #[test]
    fn rows_agree_with_the_templates() {
        for double in [false, true] {
            let all: BTreeMap<&str, Definition> =
                ALL.iter().map(|f| (f.name, Definition::of(*f, double))).collect();
            for function in ALL {
                let doubles = function.needs_64.iter().filter(|_| double);
                let row: BTreeSet<String> =
                    function.needs.iter().chain(doubles).map(|f| f.name.into()).collect();
                assert_eq!(row, shown(*function, double, &all), "{}, double: {double}", function.name);
            }
        }
    }

    #[test]
    fn templates_define_all_functions() {
        for function in ALL {
            let uses = Uses { functions: [*function].into(), long: true, double: true, ..Uses::default() };
            let text = uses.definitions().expect("a template");
            assert!(text.contains(&format!(" {}(", function.name)), "{} is not defined", function.name);
        }
    }
}
