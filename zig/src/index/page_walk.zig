//! Every page of pages.bin, one after another, checked.
const std = @import("std");
const layout = @import("layout");
const reader = @import("reader.zig");
const diagnostics = @import("diagnostic.zig");
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;
const adjacency = layout.adjacency;

pub const PageWalk = struct {
    allocator: std.mem.Allocator,
    opened: *const reader.Reader,
    /// As pages of whole codes are read.
    buffer: []align(64) u8,
    /// How many pages lie behind.
    count: u32 = 0,

    pub fn init(allocator: std.mem.Allocator, opened: *const reader.Reader) error{OutOfMemory}!PageWalk {
        return .{ .allocator = allocator, .opened = opened, .buffer = try allocator.alignedAlloc(u8, .@"64", opened.page_geometry().page_size + adjacency.over_read_bytes) };
    }

    pub fn deinit(self: *PageWalk) void {
        self.allocator.free(self.buffer);
    }

    /// The next page, valid until the next call; null after the last.
    pub fn next(self: *PageWalk, diagnostic: *Diagnostic) Error!?layout.page.View {
        const directory = &self.opened.directory;
        if (self.count == directory.page_count()) return null;
        const index = self.count;
        const geometry = self.opened.page_geometry();
        const page = self.buffer[0..geometry.page_size];
        const len = self.opened.pages_file.preadAll(page, self.opened.pages_header.offset_of(index)) catch |err| return diagnostics.file_error(diagnostic, reader.file_pages, "read", err);
        if (len != page.len) return bad_page(diagnostic, index, "it is cut short");
        const view = layout.page.View.parse(page, geometry, .{
            .page_index = index,
            .first_vertex = directory.starts[index],
            .record_count = directory.record_count(index),
        }) catch |err| return bad_page(diagnostic, index, layout.page.describe(err));
        self.count += 1;
        return view;
    }

    /// Goes on with a page that may lie anywhere.
    pub fn seek(self: *PageWalk, page: u32) void {
        self.count = page;
    }

    /// The next page is not read.
    pub fn skip(self: *PageWalk) void {
        self.count += 1;
    }

    /// The neighbors of a record of the page that came last, in `ids`.
    pub fn list(self: *const PageWalk, view: *const layout.page.View, record: u32, ids: *[adjacency.neighbors_max]u32, diagnostic: *Diagnostic) Error![]u32 {
        const index = self.count - 1;
        const encoded = view.list(record) catch |err| return bad_page(diagnostic, index, layout.page.describe(err));
        return self.opened.adjacency.decode(view.first_vertex + record, encoded.bytes, encoded.length, self.opened.n(), ids) catch
            return bad_page(diagnostic, index, "a neighbor list is damaged");
    }
};

fn bad_page(diagnostic: *Diagnostic, page_index: u32, why: []const u8) Error {
    diagnostic.in_file(reader.file_pages, "page {d} of {s}: {s}", .{ page_index, reader.file_pages, why });
    diagnostic.page = page_index;
    return error.Corrupt;
}
