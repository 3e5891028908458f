//! Tables of a library's functions, looked up by their names in the file that was opened.
//!
//! Statuses and enumerations in them are plain integers: a later version may return a number that
//! this program does not know.

use super::{Fault, Library};

/// Functions of one library.
pub(super) trait FunctionTable: Copy {
    /// Their names.
    const NAMES: &'static [&'static str];

    /// Looks all of them up.
    ///
    /// # Errors
    /// [`Fault::FunctionMissing`] names the first that the library does not have.
    fn find(library: &Library) -> Result<Self, Fault>;
}

/// Defines a table, whose fields have the names of the library's functions.
macro_rules! function_table {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $Table:ident {
            $(fn $function:ident($($argument:ty),* $(,)?) -> $returned:ty;)*
        }
    ) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, Copy)]
        #[allow(non_snake_case, missing_docs, reason = "the names are the library's")]
        $visibility struct $Table {
            $(pub $function: unsafe extern "C" fn($($argument),*) -> $returned,)*
        }

        impl $crate::cuda::function_table::FunctionTable for $Table {
            const NAMES: &'static [&'static str] = &[$(stringify!($function)),*];

            fn find(library: &$crate::cuda::Library) -> Result<Self, $crate::cuda::Fault> {
                // SAFETY: each has the type that NVIDIA's header gives the function of this name.
                unsafe { Ok(Self { $($function: library.function(stringify!($function))?,)* }) }
            }
        }
    };
}
pub(super) use function_table;
