//! Tables of pages of 80 columns, readable without colour.

use std::fmt;

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, TableStyle};

/// Columns of a page.
pub(crate) const COLUMNS: u16 = 80;

/// Creates a table that is no wider than a page.
pub(crate) fn table(style: TableStyle) -> Table {
    let mut table = Table::new();
    table.load_style(style).force_no_tty();
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(COLUMNS);
    table
}

/// Creates a cell with its text at the right.
pub(crate) fn right(text: impl ToString) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

/// Writes a table without the spaces at the ends of its lines.
pub(crate) fn write_table(formatter: &mut fmt::Formatter<'_>, table: &Table) -> fmt::Result {
    for line in table.lines() {
        writeln!(formatter, "{}", line.trim_end())?;
    }
    Ok(())
}
