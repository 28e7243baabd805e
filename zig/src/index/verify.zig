//! Reads every file of an index whole: sums against the manifest, every page, every list.
const std = @import("std");
const layout = @import("layout");
const reader = @import("reader.zig");
const diagnostics = @import("diagnostic.zig");
const files = @import("files.zig");
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
    for ([_][]const u8{ reader.file_pages, reader.file_vectors }) |name| {
        if (opened.manifest().file(name)) |file| try reader.check_file(allocator, opened.dir, file, diagnostic);
    }
}

fn check_pages(allocator: std.mem.Allocator, opened: *const reader.Reader, pages_checked: *u64, diagnostic: *Diagnostic) Error!void {
    const n = opened.n();
    const geometry = opened.page_geometry();
    const file = opened.dir.openFile(reader.file_pages, .{}) catch |err| return files.open_error(diagnostic, reader.file_pages, err);
    defer file.close();
    const buffer = try allocator.alloc(u8, geometry.page_size + adjacency.over_read_bytes);
    defer allocator.free(buffer);
    var ids: [adjacency.neighbors_max]u32 = undefined;
    for (0..opened.directory.page_count()) |i| {
        const page_index: u32 = @intCast(i);
        const page = buffer[0..geometry.page_size];
        const len = file.preadAll(page, opened.pages_header.offset_of(page_index)) catch |err| return diagnostics.file_error(diagnostic, reader.file_pages, "read", err);
        if (len != page.len) return bad_page(diagnostic, page_index, "it is cut short");
        const view = layout.page.View.parse(page, geometry, .{
            .page_index = page_index,
            .first_vertex = opened.directory.starts[i],
            .record_count = opened.directory.record_count(page_index),
        }) catch |err| return bad_page(diagnostic, page_index, layout.page.describe(err));
        if (geometry.lists) for (0..view.record_count) |record| {
            const list = view.list(@intCast(record)) catch |err| return bad_page(diagnostic, page_index, layout.page.describe(err));
            _ = opened.adjacency.decode(view.first_vertex + @as(u32, @intCast(record)), list.bytes, list.length, n, &ids) catch
                return bad_page(diagnostic, page_index, "a neighbor list is damaged");
        };
        pages_checked.* += 1;
    }
}

fn bad_page(diagnostic: *Diagnostic, page_index: u32, why: []const u8) Error {
    diagnostic.in_file(reader.file_pages, "page {d} of {s}: {s}", .{ page_index, reader.file_pages, why });
    diagnostic.page = page_index;
    return error.Corrupt;
}
