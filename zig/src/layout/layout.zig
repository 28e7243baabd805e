//! Bytes on disk, pure: nothing here opens a file. docs/FORMAT.md draws what this room reads and writes.
pub const adjacency = @import("adjacency.zig");
pub const page_lists = @import("page_lists.zig");
pub const page = @import("page.zig");
pub const links = @import("links.zig");
pub const page_starts = @import("page_starts.zig");
pub const headers = @import("headers.zig");
pub const manifest = @import("manifest.zig");
pub const vectors = @import("vectors.zig");

pub const format_version = manifest.format_version;
pub const format_version_of = manifest.format_version_of;

test {
    _ = adjacency;
    _ = page_lists;
    _ = page;
    _ = links;
    _ = page_starts;
    _ = headers;
    _ = manifest;
    _ = vectors;
}
