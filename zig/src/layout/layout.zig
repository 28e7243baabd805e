//! Bytes on disk, pure: nothing here opens a file. docs/FORMAT.md draws what this room reads and writes.
pub const adjacency = @import("adjacency.zig");
pub const page_lists = @import("page_lists.zig");
pub const page = @import("page.zig");
pub const links = @import("links.zig");
pub const page_starts = @import("page_starts.zig");
pub const headers = @import("headers.zig");
pub const manifest = @import("manifest.zig");
pub const vectors = @import("vectors.zig");

/// Raised when a reader of the former version could misread what this one writes.
pub const format_version: u32 = 5;

/// Pages that hold whole codes are laid out as no former reader knows.
pub fn format_version_of(page_codes: bool) u32 {
    return if (page_codes) 6 else format_version;
}

test {
    _ = adjacency;
    _ = page_lists;
    _ = @import("lists_test.zig");
    _ = page;
    _ = links;
    _ = page_starts;
    _ = headers;
    _ = manifest;
    _ = vectors;
}
