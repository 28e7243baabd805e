//! velo_columns and velo_filter of velo.h.
const std = @import("std");
const filter_room = @import("filter");
const errors = @import("errors.zig");
const Columns = filter_room.Columns;
const Filter = filter_room.Filter;
const fail = errors.fail;

const common = @import("common.zig");
const allocator = common.allocator;

/// As velo_column in velo.h.
pub const Column = extern struct {
    struct_size: u32 = @sizeOf(Column),
    type: i32,
    name: ?[*:0]const u8,
    row_count: u64,
    validity: ?[*]const u8 = null,
    validity_offset: u64 = 0,
    values: ?[*]const u8 = null,
    values_offset: u64 = 0,
    values_count: u64 = 0,
    offsets: ?[*]align(1) const i32 = null,
};

fn null_argument(comptime name: []const u8) i32 {
    return fail(.invalid_argument, .{ .argument = name }, name ++ " is NULL", .{});
}

fn out_of_memory() i32 {
    return fail(.out_of_memory, .{}, "the operating system gave no memory", .{});
}

export fn velo_columns_open(row_count: u64, columns_out: ?*?*Columns) i32 {
    const out = columns_out orelse return null_argument("columns_out");
    const columns = allocator.create(Columns) catch return out_of_memory();
    columns.* = Columns.init(allocator, row_count) catch {
        allocator.destroy(columns);
        return fail(.invalid_argument, .{ .argument = "row_count" }, "{d} rows are more than an index can hold", .{row_count});
    };
    out.* = columns;
    return 0;
}

export fn velo_columns_add(columns: ?*Columns, column: ?*const Column) i32 {
    const store = columns orelse return null_argument("columns");
    const given = column orelse return null_argument("column");
    if (given.struct_size < @sizeOf(Column))
        return fail(.invalid_argument, .{ .argument = "column" }, "struct_size {d} of velo_column is too small", .{given.struct_size});
    const column_type = std.enums.fromInt(filter_room.ColumnType, given.type) orelse
        return fail(.invalid_argument, .{ .argument = "type" }, "column type {d} is unknown", .{given.type});
    const name = given.name orelse return null_argument("name");
    var diagnostic = filter_room.Diagnostic{};
    store.add(.{
        .name = std.mem.span(name),
        .type = column_type,
        .row_count = given.row_count,
        .validity = given.validity,
        .validity_offset = given.validity_offset,
        .values = given.values,
        .values_offset = given.values_offset,
        .values_count = given.values_count,
        .offsets = given.offsets,
    }, &diagnostic) catch |err| return switch (err) {
        error.InvalidArgument => fail(.invalid_argument, .{ .argument = "column" }, "{s}", .{diagnostic.message()}),
        error.OutOfMemory => out_of_memory(),
    };
    return 0;
}

fn corrupt_postings(diagnostic: *const filter_room.Diagnostic) i32 {
    return fail(.corrupt, .{ .file = diagnostic.file() }, "{s}", .{diagnostic.message()});
}

export fn velo_columns_write_postings(columns: ?*const Columns, path: ?[*:0]const u8, generation: u64) i32 {
    const store = columns orelse return null_argument("columns");
    const file = std.mem.span(path orelse return null_argument("path"));
    filter_room.write_postings(allocator, file, store, generation) catch |err| return switch (err) {
        error.OutOfMemory => out_of_memory(),
        error.NoSpaceLeft, error.DiskQuota, error.FileTooBig => fail(.no_space, .{ .file = file }, "{s}: no space is left", .{file}),
        error.AccessDenied, error.PermissionDenied => fail(.permission, .{ .file = file }, "{s}: permission denied", .{file}),
        else => fail(.io, .{ .file = file }, "{s} cannot be written: {t}", .{ file, err }),
    };
    return 0;
}

export fn velo_columns_load_postings(columns: ?*Columns, path: ?[*:0]const u8, generation: u64) i32 {
    const store = columns orelse return null_argument("columns");
    const file = std.mem.span(path orelse return null_argument("path"));
    if (store.postings != null) return fail(.invalid_argument, .{ .argument = "columns" }, "these columns have postings already", .{});
    var diagnostic = filter_room.Diagnostic{};
    store.load_postings(file, generation, &diagnostic) catch |err| return switch (err) {
        error.Corrupt => corrupt_postings(&diagnostic),
        error.NewerVersion => fail(.unsupported_version, .{ .file = diagnostic.file() }, "{s}", .{diagnostic.message()}),
        error.Io => fail(.io, .{ .file = diagnostic.file() }, "{s}", .{diagnostic.message()}),
        error.OutOfMemory => out_of_memory(),
    };
    return 0;
}

/// As velo_columns_info in velo.h.
pub const ColumnsInfo = extern struct {
    struct_size: u32 = @sizeOf(ColumnsInfo),
    has_postings: u32 = 0,
    resident_bytes: u64 = 0,
    mapped_bytes: u64 = 0,
};

export fn velo_columns_info_get(columns: ?*Columns, info_out: ?*ColumnsInfo) i32 {
    const store = columns orelse return null_argument("columns");
    const out = info_out orelse return null_argument("info_out");
    if (out.struct_size < 8) return common.size_error("velo_columns_info", out.struct_size);
    const memory = store.memory();
    common.write_versioned(ColumnsInfo, out, &.{
        .has_postings = @intFromBool(store.postings != null),
        .resident_bytes = memory.resident_bytes,
        .mapped_bytes = memory.mapped_bytes,
    });
    return 0;
}

export fn velo_columns_close(columns: ?*Columns) i32 {
    const store = columns orelse return 0;
    store.deinit();
    allocator.destroy(store);
    return 0;
}

export fn velo_filter_compile(columns: ?*Columns, program: ?[*]const u8, program_size: u64, filter_out: ?*?*Filter) i32 {
    const store = columns orelse return null_argument("columns");
    const bytes = program orelse return null_argument("program");
    const out = filter_out orelse return null_argument("filter_out");
    const size = std.math.cast(usize, program_size) orelse
        return fail(.invalid_argument, .{ .argument = "program_size" }, "a program of {d} bytes", .{program_size});
    var diagnostic = filter_room.Diagnostic{};
    out.* = Filter.compile(allocator, store, bytes[0..size], &diagnostic) catch |err| return switch (err) {
        error.BadProgram, error.UnknownColumn, error.WrongType, error.TooDeep => fail(.filter, .{ .argument = "filter" }, "{s}", .{diagnostic.message()}),
        error.Corrupt => corrupt_postings(&diagnostic),
        error.OutOfMemory => out_of_memory(),
    };
    return 0;
}

export fn velo_filter_mask(bits: ?[*]const u8, row_count: u64, filter_out: ?*?*Filter) i32 {
    const out = filter_out orelse return null_argument("filter_out");
    const size = std.math.cast(usize, row_count / 8 + @intFromBool(row_count % 8 != 0)) orelse
        return fail(.invalid_argument, .{ .argument = "row_count" }, "{d} rows are more than an index can hold", .{row_count});
    const bytes = if (bits) |given| given[0..size] else if (row_count == 0) &[_]u8{} else return null_argument("bits");
    out.* = Filter.from_mask(allocator, bytes, row_count) catch |err| return switch (err) {
        error.InvalidArgument => fail(.invalid_argument, .{ .argument = "row_count" }, "{d} rows are more than an index can hold", .{row_count}),
        error.OutOfMemory => out_of_memory(),
    };
    return 0;
}

export fn velo_filter_restrict(filter: ?*Filter, rows: ?*const Filter, filter_out: ?*?*Filter) i32 {
    const inner = filter orelse return null_argument("filter");
    const live = rows orelse return null_argument("rows");
    const out = filter_out orelse return null_argument("filter_out");
    out.* = Filter.restrict(allocator, inner, live) catch |err| return switch (err) {
        error.InvalidArgument => fail(.invalid_argument, .{ .argument = "rows" }, "rows is no mask, or one of {d} rows where the filter is about {d}", .{ live.row_count, inner.row_count }),
        error.OutOfMemory => out_of_memory(),
    };
    return 0;
}

export fn velo_filter_count(filter: ?*const Filter, count_out: ?*u64, matches_out: ?[*]u8) i32 {
    const one = filter orelse return null_argument("filter");
    const out = count_out orelse return null_argument("count_out");
    const size: usize = @intCast((one.row_count + 7) / 8);
    out.* = one.count(if (matches_out) |bytes| bytes[0..size] else null);
    return 0;
}

export fn velo_filter_resolve(filter: ?*Filter) i32 {
    const one = filter orelse return null_argument("filter");
    _ = one.resolve() catch return out_of_memory();
    return 0;
}

export fn velo_filter_find(filter: ?*Filter, count_out: ?*u64) i32 {
    const one = filter orelse return null_argument("filter");
    const out = count_out orelse return null_argument("count_out");
    var it = one.matches() catch return out_of_memory();
    out.* = it.count();
    return 0;
}

/// As velo_filter_info in velo.h.
pub const FilterInfo = extern struct {
    struct_size: u32 = @sizeOf(FilterInfo),
    is_exact: i32 = 0,
    is_resolved: i32 = 0,
    zero: i32 = 0,
    expected_share: f64 = 0,
    memory_bytes: u64 = 0,
};

export fn velo_filter_info_get(filter: ?*Filter, info_out: ?*FilterInfo) i32 {
    const one = filter orelse return null_argument("filter");
    const out = info_out orelse return null_argument("info_out");
    if (out.struct_size < 8) return common.size_error("velo_filter_info", out.struct_size);
    common.write_versioned(FilterInfo, out, &.{
        .is_exact = @intFromBool(one.is_exact()),
        .is_resolved = @intFromBool(one.is_resolved()),
        .expected_share = one.estimate(),
        .memory_bytes = one.memory_bytes(),
    });
    return 0;
}

export fn velo_filter_check(filter: ?*const Filter, vertices: ?[*]const u32, vertex_count: u64, passes_out: ?[*]u8) i32 {
    const one = filter orelse return null_argument("filter");
    if (vertex_count == 0) return 0;
    const asked = (vertices orelse return null_argument("vertices"))[0..@intCast(vertex_count)];
    const out = passes_out orelse return null_argument("passes_out");
    for (asked, out[0..asked.len]) |vertex, *passes| {
        if (vertex >= one.row_count)
            return fail(.invalid_argument, .{ .argument = "vertices" }, "vertex {d} of {d} rows", .{ vertex, one.row_count });
        passes.* = @intFromBool(one.passes(vertex));
    }
    return 0;
}

export fn velo_filter_close(filter: ?*Filter) i32 {
    if (filter) |one| one.deinit();
    return 0;
}

test "a filter through the C ABI" {
    const values = [_]i32{ 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 };
    var columns: ?*Columns = null;
    try std.testing.expectEqual(0, velo_columns_open(values.len, &columns));
    defer _ = velo_columns_close(columns);
    const column = Column{ .type = 3, .name = "n", .row_count = values.len, .values = @ptrCast(&values), .values_count = values.len };
    try std.testing.expectEqual(0, velo_columns_add(columns, &column));
    try std.testing.expectEqual(1, velo_columns_add(columns, &column));
    var wrong = column;
    wrong.type = 14;
    try std.testing.expectEqual(1, velo_columns_add(columns, &wrong));

    var filter: ?*Filter = null;
    try std.testing.expectEqual(17, velo_filter_compile(columns, "nonsense", 8, &filter));
    var found = errors.Error{};
    _ = errors.velo_last_error(&found);
    try std.testing.expectEqual(17, found.status);
    try std.testing.expectEqualStrings("filter", std.mem.sliceTo(&found.argument, 0));
    try std.testing.expectEqual(null, filter);

    const bits = [_]u8{ 0b0101_0101, 0b01 };
    try std.testing.expectEqual(0, velo_filter_mask(&bits, 10, &filter));
    defer _ = velo_filter_close(filter);
    var count: u64 = 0;
    var matches = [_]u8{ 0, 0 };
    try std.testing.expectEqual(0, velo_filter_count(filter, &count, &matches));
    try std.testing.expectEqual(5, count);
    try std.testing.expectEqualSlices(u8, &bits, &matches);
    try std.testing.expectEqual(1, velo_filter_mask(null, 10, &filter));
    try std.testing.expectEqual(0, velo_filter_close(null));
    try std.testing.expectEqual(0, velo_columns_close(null));
}
