//! Reads every file of an index whole: sums against the manifest, every page, every list.
const std = @import("std");
const layout = @import("layout");
const reader = @import("reader.zig");
const diagnostics = @import("diagnostic.zig");
const PageWalk = @import("page_walk.zig").PageWalk;
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;
const adjacency = layout.adjacency;

pub fn verify(allocator: std.mem.Allocator, path: []const u8, pages_checked: *u64, diagnostic: *Diagnostic) Error!void {
    pages_checked.* = 0;
    var opened = try reader.Reader.open(allocator, path, .{ .links = .where_room }, diagnostic);
    defer opened.deinit();
    const n = opened.n();
    var ids: [adjacency.neighbors_max]u32 = undefined;
    if (opened.links) |links| for (0..n) |vertex| {
        _ = links.decode(@intCast(vertex), &ids) catch {
            diagnostic.in_file(reader.file_links, "the links of vertex {d} are damaged", .{vertex});
            return error.Corrupt;
        };
    };
    try check_pages(allocator, &opened, pages_checked, diagnostic);
    if (opened.vectors) |*vectors| {
        const page = try allocator.alloc(u8, vectors.geometry.page_size);
        defer allocator.free(page);
        for (0..@intCast(vectors.geometry.page_count(n))) |i| {
            try vectors.read_page(@intCast(i), page, diagnostic);
            pages_checked.* += 1;
        }
    }
    for ([_][]const u8{ reader.file_pages, reader.file_page_codes, reader.file_vectors }) |name| {
        if (opened.manifest().file(name)) |file| try reader.check_file(allocator, opened.dir, file, diagnostic);
    }
}

fn check_pages(allocator: std.mem.Allocator, opened: *const reader.Reader, pages_checked: *u64, diagnostic: *Diagnostic) Error!void {
    var walk = try PageWalk.init(allocator, opened);
    defer walk.deinit();
    var ids: [adjacency.neighbors_max]u32 = undefined;
    while (try walk.next(diagnostic)) |view| {
        if (opened.page_geometry().lists) for (0..view.record_count) |record| {
            _ = try walk.list(&view, @intCast(record), &ids, diagnostic);
        };
        pages_checked.* += 1;
    }
}
