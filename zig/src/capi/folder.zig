//! What is done to the folder of an index without opening it: its manifest is replaced, its files are checked.
const std = @import("std");
const index = @import("index");
const common = @import("common.zig");
const live = @import("live.zig");
const ok = common.ok;

export fn velo_index_recommit(
    path: ?[*:0]const u8,
    prefix: ?[*:0]const u8,
    file_names: ?[*]const ?[*:0]const u8,
    file_count: u32,
    user_json: ?[*:0]const u8,
) i32 {
    const folder = path orelse return common.null_argument("path");
    const beginning = prefix orelse return common.null_argument("prefix");
    const user = user_json orelse return common.null_argument("user_json");
    const names = common.allocator.alloc([]const u8, file_count) catch return common.out_of_memory();
    defer common.allocator.free(names);
    for (names, 0..) |*name, i| name.* = std.mem.span((file_names orelse return common.null_argument("file_names"))[i] orelse return common.null_argument("file_names"));
    var diagnostic: index.Diagnostic = .{};
    index.recommit(common.allocator, std.mem.span(folder), std.mem.span(beginning), names, std.mem.span(user), &diagnostic) catch |err|
        return common.fail_index(err, &diagnostic);
    return ok;
}

export fn velo_calibration_store(path: ?[*:0]const u8, calibration_json: ?[*:0]const u8) i32 {
    const folder = path orelse return common.null_argument("path");
    var diagnostic: index.Diagnostic = .{};
    const json = if (calibration_json) |text| std.mem.span(text) else null;
    index.store_calibration(common.allocator, std.mem.span(folder), json, &diagnostic) catch |err| return common.fail_index(err, &diagnostic);
    return ok;
}

export fn velo_verify(path: ?[*:0]const u8, pages_checked_out: ?*u64) i32 {
    const folder = path orelse return common.null_argument("path");
    var diagnostic: index.Diagnostic = .{};
    var pages: u64 = 0;
    live.verify(common.allocator, std.mem.span(folder), &pages, &diagnostic) catch |err| return live.fail_live(err, &diagnostic);
    if (pages_checked_out) |out| out.* = pages;
    return ok;
}
