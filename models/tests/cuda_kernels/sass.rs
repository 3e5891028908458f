//! Machine code of kernels by wgmma, as nvdisasm prints it: between the start of a product and the
//! wait for it, nothing may use its sums or overwrite its left operand in registers. The compiler
//! assigns registers, and before CUDA 13.3 it was reported to reuse those of left operands too
//! early (triton, issue 9433 and pull request 11781).

use std::collections::{BTreeSet, HashSet};
use std::ops::Range;

/// Numbers of consecutive registers.
type Registers = Range<u32>;

/// One product, `HGMMA`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Product {
    sums: Registers,
    left: Option<Registers>,
}

/// Products that a wait counts as one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Group {
    products: Vec<Product>,
    is_committed: bool,
}

/// An instruction, with its operands as texts.
#[derive(Debug)]
struct Instruction<'a> {
    address: &'a str,
    is_conditional: bool,
    operation: &'a str,
    operands: Vec<&'a str>,
}

#[derive(Debug)]
enum Line<'a> {
    Label(&'a str),
    Instruction(Instruction<'a>),
}

/// The code of one kernel.
#[derive(Debug)]
pub(crate) struct Kernel<'a> {
    name: &'a str,
    lines: Vec<Line<'a>>,
}

/// The kernels of a disassembly by `nvdisasm -c`.
pub(crate) fn kernels(disassembly: &str) -> Vec<Kernel<'_>> {
    let mut kernels: Vec<Kernel<'_>> = Vec::new();
    for text in disassembly.lines() {
        if let Some(section) = text.trim_start().strip_prefix(".section\t") {
            let name = section.strip_prefix(".text.").and_then(|rest| rest.split(',').next());
            kernels.extend(name.map(|name| Kernel { name, lines: Vec::new() }));
        } else if let Some(kernel) = kernels.last_mut() {
            kernel.lines.extend(line(text));
        }
    }
    kernels
}

fn line(text: &str) -> Option<Line<'_>> {
    if text.starts_with(".L_") {
        return text.strip_suffix(':').map(Line::Label);
    }
    let (address, rest) = text.trim().strip_prefix("/*")?.split_once("*/")?;
    let rest = rest.trim().strip_suffix(';')?.trim();
    let guarded = rest.strip_prefix('@').and_then(|rest| rest.split_once(' '));
    let text = guarded.map_or(rest, |(_predicate, text)| text.trim());
    let (operation, operands) = text.split_once(' ').unwrap_or((text, ""));
    Some(Line::Instruction(Instruction {
        address,
        is_conditional: guarded.is_some(),
        operation,
        operands: operands.split(',').map(str::trim).collect(),
    }))
}

impl Kernel<'_> {
    /// Products whose left operand is in registers.
    pub(crate) fn left_operands(&self) -> usize {
        let instructions = self.lines.iter().filter_map(Line::instruction);
        instructions.filter_map(Instruction::product).filter(|one| one.left.is_some()).count()
    }

    /// Uses of registers of products in flight, on every path through the kernel, and products that
    /// are on none.
    pub(crate) fn violations(&self) -> BTreeSet<String> {
        let mut violations = BTreeSet::new();
        let mut seen = HashSet::new();
        let mut paths = vec![(0, InFlight::default())];
        while let Some((at, mut in_flight)) = paths.pop() {
            if at == self.lines.len() || !seen.insert((at, in_flight.clone())) {
                continue;
            }
            let Some(instruction) = self.lines[at].instruction() else {
                paths.push((at + 1, in_flight));
                continue;
            };
            let broken = in_flight.rule_broken_by(instruction);
            violations.extend(broken.map(|what| self.violation(instruction, what)));
            in_flight.advance(instruction);
            if let Some(label) = instruction.target() {
                paths.push((self.index_of(label), in_flight.clone()));
            }
            if !instruction.ends_path() {
                paths.push((at + 1, in_flight));
            }
        }
        let reached: HashSet<_> = seen.into_iter().map(|(at, _)| at).collect();
        let unreached = (0..self.lines.len()).filter(|at| !reached.contains(at));
        let unreached = unreached.filter_map(|at| self.lines[at].instruction());
        let products = unreached.filter(|instruction| instruction.product().is_some());
        violations.extend(products.map(|product| self.violation(product, "is on no path")));
        violations
    }

    fn violation(&self, instruction: &Instruction<'_>, what: &str) -> String {
        let Instruction { address, operation, operands, .. } = instruction;
        format!("{} at {address}: {operation} {} {what}", self.name, operands.join(", "))
    }

    fn index_of(&self, label: &str) -> usize {
        let mut lines = self.lines.iter();
        let found = lines.position(|line| matches!(line, Line::Label(found) if *found == label));
        found.unwrap_or_else(|| panic!("{}: no {label}", self.name))
    }
}

impl<'a> Line<'a> {
    fn instruction(&self) -> Option<&Instruction<'a>> {
        match self {
            Self::Instruction(instruction) => Some(instruction),
            Self::Label(_) => None,
        }
    }
}

impl<'a> Instruction<'a> {
    /// As in `HGMMA.64x128x16.F32.BF16 R24, R88, gdesc[UR4], R24, gsb0`.
    fn product(&self) -> Option<Product> {
        let shape = self.operation.strip_prefix("HGMMA.64x")?;
        let columns: u32 = shape.split('x').next()?.parse().unwrap();
        let sums = register(self.operands[0]).unwrap();
        let left = register(self.operands[1]).map(|first| first..first + 4);
        Some(Product { sums: sums..sums + columns / 2, left })
    }

    /// Groups that may still be in flight behind this wait, which releases nothing for certain
    /// where it is conditional.
    fn wait(&self) -> Option<usize> {
        let is_wait = self.operation == "WARPGROUP.DEPBAR.LE" && !self.is_conditional;
        let groups = is_wait.then(|| self.operands[1].strip_prefix("0x").unwrap())?;
        Some(usize::from_str_radix(groups, 16).unwrap())
    }

    /// The first operand that is no predicate, unless it is memory, a uniform register or none.
    fn written(&self) -> Registers {
        let writes_predicates = ["SETP", "FCHK", "R2P"];
        let mut operands = self.operands.iter().skip_while(|operand| is_predicate(operand));
        let first = operands.next().and_then(|operand| register(operand));
        match first {
            Some(first) if !writes_predicates.iter().any(|part| self.operation.contains(part)) => {
                first..first + self.width()
            }
            _ => 0..0,
        }
    }

    /// Registers that it writes.
    fn width(&self) -> u32 {
        let has = |part| self.operation.contains(part);
        if has(".128") || (has("LDSM") && has(".4")) {
            4
        } else if has(".64") || has(".WIDE") || has("CS2R") || (has("LDSM") && has(".2")) {
            2
        } else {
            1
        }
    }

    /// Every register that is named.
    fn named(&self) -> impl Iterator<Item = u32> {
        let words = |operand: &&'a str| operand.split(|c: char| !c.is_ascii_alphanumeric());
        self.operands.iter().flat_map(words).filter_map(register)
    }

    /// Where it may jump to.
    fn target(&self) -> Option<&'a str> {
        if !self.operation.starts_with("BRA") {
            return None;
        }
        let label = self.operands.last()?.strip_prefix("`(")?.strip_suffix(')');
        Some(label.unwrap())
    }

    /// Returns whether it goes where it is not followed.
    fn leaves(&self) -> bool {
        self.operation.starts_with("CALL") || self.jumps_elsewhere()
    }

    fn jumps_elsewhere(&self) -> bool {
        ["JMP", "JMX", "BRX"].iter().any(|name| self.operation.starts_with(name))
    }

    fn ends_path(&self) -> bool {
        let jumps = self.operation.starts_with("BRA") && self.operands.len() == 1;
        let returns = ["EXIT", "RET"].iter().any(|name| self.operation.starts_with(name));
        !self.is_conditional && (jumps || returns || self.jumps_elsewhere())
    }
}

/// As in `P0`, `!PT` or `UP3`.
fn is_predicate(operand: &str) -> bool {
    let operand = operand.trim_start_matches('!').trim_start_matches('U');
    matches!(operand.strip_prefix('P'), Some(rest) if rest == "T" || rest.parse::<u32>().is_ok())
}

/// The number in `R24` or `R24.reuse`.
fn register(operand: &str) -> Option<u32> {
    operand.split('.').next()?.strip_prefix('R')?.parse().ok()
}

fn overlap(a: &Registers, b: &Registers) -> bool {
    a.start < b.end && b.start < a.end
}

/// Groups in flight, the oldest first. Only the newest may be without its commit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct InFlight(Vec<Group>);

impl InFlight {
    /// Describes the rule that an instruction breaks.
    fn rule_broken_by(&self, instruction: &Instruction<'_>) -> Option<&'static str> {
        if !self.0.is_empty() && instruction.leaves() {
            return Some("is not followed, with products in flight");
        }
        let own = instruction.product();
        let written = own.as_ref().map_or_else(|| instruction.written(), |own| own.sums.clone());
        let products = || self.0.iter().flat_map(|group| &group.products);
        let mut lefts = products().filter_map(|product| product.left.as_ref());
        if lefts.any(|left| overlap(left, &written)) {
            return Some("overwrites a left operand of a product in flight");
        }
        let uses = |sums: &Registers| match &own {
            // Products add to the same sums in their order.
            Some(own) => {
                let reads = own.left.as_ref().is_some_and(|left| overlap(left, sums));
                reads || (own.sums != *sums && overlap(&own.sums, sums))
            }
            None => overlap(sums, &written) || instruction.named().any(|one| sums.contains(&one)),
        };
        products().any(|product| uses(&product.sums)).then_some("uses sums of a product in flight")
    }

    fn advance(&mut self, instruction: &Instruction<'_>) {
        if let Some(left) = instruction.wait() {
            let done = self.0.len().saturating_sub(left);
            self.0.drain(..done);
        }
        let Some(product) = instruction.product() else { return };
        if self.0.last().is_none_or(|group| group.is_committed) {
            self.0.push(Group::default());
            assert!(self.0.len() < 16, "products that nothing waits for");
        }
        if let Some(group) = self.0.last_mut() {
            if !group.products.contains(&product) {
                group.products.push(product);
            }
            group.is_committed = instruction.operands.contains(&"gsb0");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::kernels;

    /// A loop with a product of scores, whose left operand stays, and one that is waited for last.
    const LOOP: [&str; 12] = [
        "\t.section\t.text.k,\"ax\",@progbits",
        ".L_x_1:",
        "        /*0010*/          HGMMA.64x32x16.F32.BF16 R24, R40, gdesc[UR4], RZ, !UPT ;",
        "        /*0020*/          HGMMA.64x32x16.F32.BF16 R24, R44, gdesc[UR4], R24, gsb0 ;",
        "        /*0030*/          HGMMA.64x32x16.F32.BF16 R64, R80, gdesc[UR4], R64, gsb0 ;",
        "        /*0040*/          WARPGROUP.DEPBAR.LE gsb0, 0x1 ;",
        "        /*0050*/          FMUL R24, R24.reuse, R2 ;",
        "        /*0060*/          STG.E desc[UR6][R2.64], R80 ;",
        "        /*0070*/          WARPGROUP.DEPBAR.LE gsb0, 0x0 ;",
        "        /*0080*/          F2FP.BF16.F32.PACK_AB R80, R25, R24 ;",
        "        /*0090*/          @P0 BRA `(.L_x_1) ;",
        "        /*00a0*/          EXIT ;",
    ];

    /// Violations with one line replaced.
    fn violations_with(at: usize, text: &str) -> Vec<String> {
        let mut lines = LOOP;
        lines[at] = text;
        let text = lines.join("\n");
        let kernels = kernels(&text);
        assert_eq!(kernels.len(), 1);
        kernels[0].violations().into_iter().collect()
    }

    #[test]
    fn registers_are_free_behind_the_wait_for_their_product() {
        assert!(violations_with(0, LOOP[0]).is_empty());
        assert_eq!(kernels(&LOOP.join("\n"))[0].left_operands(), 3);
    }

    #[test]
    fn registers_in_flight_are_reported() {
        let left = "overwrites a left operand of a product in flight";
        let sums = "uses sums of a product in flight";
        for (instruction, what) in [
            ("FADD R83, R2, R3", left),
            ("IMAD.WIDE R82, R2, R3, R4", left),
            ("LDSM.16.M88.4 R78, [R2]", left),
            ("@!P1 IMAD.MOV.U32 R80, RZ, RZ, R2", left),
            ("SHFL.BFLY PT, R81, R2, 0x1, 0x1f", left),
            ("HGMMA.64x32x16.F32.BF16 R68, gdesc[UR4], R68, gsb0", left),
            ("FADD R2, R79, R3", sums),
            ("FSETP.GT.AND P0, PT, R64.reuse, R2, PT", sums),
            ("STG.E desc[UR6][R2.64], R70", sums),
            ("HGMMA.64x32x16.F32.BF16 R56, gdesc[UR4], R56, gsb0", sums),
        ] {
            let found = violations_with(6, &format!("        /*0050*/       {instruction} ;"));
            assert!(
                found[0].starts_with("k at 0050: ") && found[0].ends_with(what),
                "{instruction}: {found:?}"
            );
        }
    }

    /// The sums of the loop's first products are the left operand of its last, which is in flight
    /// when the loop begins again.
    #[test]
    fn products_are_followed_around_a_loop() {
        let last = "HGMMA.64x32x16.F32.BF16 R96, R24, gdesc[UR4], R96, gsb0";
        let found = violations_with(9, &format!("        /*0080*/       {last} ;"));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("k at 0010: HGMMA"), "{found:?}");
        assert!(found[1].starts_with("k at 0020: HGMMA"), "{found:?}");
    }

    #[test]
    fn a_conditional_wait_releases_nothing() {
        let wait = "@P1 WARPGROUP.DEPBAR.LE gsb0, 0x0";
        let found = violations_with(8, &format!("        /*0070*/       {wait} ;"));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("k at 0080: F2FP"), "{found:?}");
    }

    #[test]
    fn no_product_is_in_flight_where_the_path_is_lost() {
        for leaves in ["CALL.REL.NOINC `(f)", "@P1 JMP 0x100", "BRX R2 -0x10"] {
            let found = violations_with(6, &format!("        /*0050*/       {leaves} ;"));
            let [found] = &found[..] else { panic!("{leaves}: {found:?}") };
            assert!(found.starts_with("k at 0050: ") && found.contains("not followed"), "{found}");
            let waited = violations_with(9, &format!("        /*0080*/       {leaves} ;"));
            assert!(waited.is_empty(), "{waited:?}");
        }
    }

    #[test]
    fn every_product_is_on_a_path() {
        let found = violations_with(2, "        /*0010*/          EXIT ;");
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("k at 0020: HGMMA"), "{found:?}");
        assert!(found[1].ends_with("is on no path"), "{found:?}");
    }
}
