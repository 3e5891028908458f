//! Versions of CUDA's libraries.

use std::fmt;

/// A version of a library, as in 2.27.3, or of CUDA, as in 12.9.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Part that must agree between libraries and drivers.
    pub major: u32,
    /// Part that need not agree.
    pub minor: u32,
    /// The third part, if there is one.
    pub patch: Option<u32>,
}

impl Version {
    /// A version of CUDA.
    pub(super) const fn of_cuda(major: u32, minor: u32) -> Self {
        Self { major, minor, patch: None }
    }

    /// Converts the number of `cuDriverGetVersion`: 12090 is 12.9.
    pub(super) fn from_cuda_number(number: u32) -> Self {
        Self::of_cuda(number / 1000, number % 1000 / 10)
    }

    /// Converts the number of cuBLASLt and NCCL: 120901 is 12.9.1.
    pub(super) fn from_six_digits(number: u32) -> Self {
        Self { major: number / 10_000, minor: number / 100 % 100, patch: Some(number % 100) }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.major, self.minor)?;
        self.patch.map_or(Ok(()), |patch| write!(formatter, ".{patch}"))
    }
}

/// The version of the driver's module in the running kernel.
pub(super) fn kernel_module() -> Option<String> {
    parse_kernel_module(&std::fs::read_to_string("/proc/driver/nvidia/version").ok()?)
}

/// The first word behind `Kernel Module` that starts with a digit: between them may be the
/// processor's architecture.
fn parse_kernel_module(text: &str) -> Option<String> {
    let (_, behind) = text.split_once("Kernel Module")?;
    let line = behind.lines().next()?;
    let starts_with_digit = |word: &&str| word.starts_with(|c: char| c.is_ascii_digit());
    line.split_whitespace().find(starts_with_digit).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_numbers() {
        assert_eq!(Version::from_cuda_number(12_090).to_string(), "12.9");
        assert_eq!(Version::from_cuda_number(13_000).to_string(), "13.0");
        assert!(Version::from_cuda_number(11_080) < Version::of_cuda(12, 0));
        assert_eq!(Version::from_six_digits(120_901).to_string(), "12.9.1");
        assert_eq!(Version::from_six_digits(22_703).to_string(), "2.27.3");
        assert!(Version::from_six_digits(91_701) < Version::from_six_digits(92_500));
    }

    #[test]
    fn the_module_of_both_flavours_of_the_driver_is_recognised() {
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 \n\
                      GCC version:  gcc version 12.2.0\n";
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release\n";
        assert_eq!(parse_kernel_module(closed).as_deref(), Some("550.54.15"));
        assert_eq!(parse_kernel_module(open).as_deref(), Some("580.65.06"));
        assert_eq!(parse_kernel_module("GCC version:  gcc version 12.2.0\n"), None);
    }
}
