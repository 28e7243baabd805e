//! page_codes.bin: a few codes of each page, by which pages are ranked where memory has no room for codes of vectors.
//!
//! They are codes of centers of a page's records and not of some of its records: over sift100k four centers rank pages so that
//! 59 reads find what 174 do by four records (docs/decisions/0021). Several levels of detail lie one behind another, so
//! that a budget has the finest that fits; the coarsest, one code a page, stands before each other.
const std = @import("std");
const base = @import("base");
const layout = @import("layout");
const quant = @import("quant");
const diagnostics = @import("diagnostic.zig");
const files = @import("files.zig");
const space = @import("space.zig");
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;
const Header = layout.headers.PageCodes;

comptime {
    std.debug.assert(layout.page.upper_factor_largest == quant.PositiveFloat.largest);
}

/// Codes of the finer levels, as shares of the records of an average page.
const shares = [_]f64{ 0.17, 0.42, 0.75 };
/// An open names a level by its count, as it names links.
const count_max = base.limits.ranges.links_kept.max;

pub const Counts = @FieldType(Header, "counts");

/// Codes a page of each level, ascending, by the records of an average page; returns the number of levels.
pub fn counts_of(records: f64, counts: *Counts) u32 {
    counts.* = @splat(0);
    counts[0] = 1;
    var len: u32 = 1;
    for (shares) |share| {
        const count: u32 = @min(count_max, @as(u32, @intFromFloat(@round(share * records))));
        if (count <= counts[len - 1]) continue;
        counts[len] = count;
        len += 1;
    }
    return len;
}

pub fn header_of(n: u64, page_count: u32) Header {
    var header: Header = .{ .page_count = page_count, .level_count = 0, .counts = undefined, .f_upper_max = 0 };
    header.level_count = counts_of(@as(f64, @floatFromInt(n)) / @as(f64, @floatFromInt(page_count)), &header.counts);
    return header;
}

/// The part of the file that is in memory.
pub const PageCodes = struct {
    memory: base.AlignedBytes,
    /// One a page.
    coarse: quant.Codes,
    /// `count` a page.
    fine: quant.Codes,
    count: u32,
    f_upper_max: f32,

    pub fn deinit(self: *PageCodes) void {
        self.memory.free();
    }
};

/// Levels of a file, and what each takes in memory.
pub const Levels = struct {
    header: Header,
    code_bytes: u64,

    pub fn read(dir: std.fs.Dir, m: *const layout.manifest.Manifest, codes: *const layout.headers.Codes, diagnostic: *Diagnostic) Error!Levels {
        if (!m.page_codes) {
            diagnostic.argument = "plan";
            diagnostic.say("this index was built without codes of its pages (page_codes=True)", .{});
            return error.Unsupported;
        }
        const file = m.file(files.file_page_codes).?; // `open` has looked
        const code_bytes = codes.code_bytes();
        const opened = dir.openFile(file.name, .{}) catch |err| return files.open_error(diagnostic, file.name, err);
        defer opened.close();
        var header: Header = undefined;
        const len = opened.readAll(std.mem.asBytes(&header)) catch |err| return diagnostics.file_error(diagnostic, file.name, "read", err);
        if (len != @sizeOf(Header) or !header.valid() or header.page_count != m.page_count) return files.bad_file(diagnostic, file.name);
        const levels: Levels = .{ .header = header, .code_bytes = code_bytes };
        if (levels.header.level(header.level_count - 1, code_bytes).end != file.bytes) return files.bad_file(diagnostic, file.name);
        return levels;
    }

    fn bytes_of(self: *const Levels, number: usize) u64 {
        const level = self.header.level(number, self.code_bytes);
        return std.mem.alignForward(u64, level.end - level.codes, 64);
    }

    /// Of that level with the coarsest before it.
    pub fn memory_bytes(self: *const Levels, number: usize) u64 {
        return self.bytes_of(0) + if (number > 0) self.bytes_of(number) else 0;
    }

    /// The finest level that fits; null where none does.
    pub fn within(self: *const Levels, room: ?u64) ?usize {
        var number: usize = self.header.level_count;
        while (number > 0) {
            number -= 1;
            if (self.memory_bytes(number) <= room orelse std.math.maxInt(u64)) return number;
        }
        return null;
    }

    fn with_count(self: *const Levels, count: u32) ?usize {
        return std.mem.indexOfScalar(u32, self.header.counts[0..self.header.level_count], count);
    }

    /// `codes` has what codes of pages and of vectors have in common.
    pub fn load(self: *const Levels, allocator: std.mem.Allocator, dir: std.fs.Dir, file: layout.manifest.File, number: usize, codes: *const quant.Codes, diagnostic: *Diagnostic) Error!PageCodes {
        const sum = std.fmt.parseInt(u64, file.checksum, 16) catch return files.bad_manifest(diagnostic, file.name);
        var mapped = try files.map_checked(allocator, dir, file.name, @intCast(file.bytes), sum, diagnostic);
        defer mapped.free();
        var memory = try base.AlignedBytes.alloc(@intCast(self.memory_bytes(number)), .{ .huge_pages = true });
        errdefer memory.free();
        const coarse = try self.place(mapped.bytes, 0, memory.bytes, codes, file.name, diagnostic);
        const fine = if (number == 0) coarse else try self.place(mapped.bytes, number, @alignCast(memory.bytes[@intCast(self.bytes_of(0))..]), codes, file.name, diagnostic);
        return .{ .memory = memory, .coarse = coarse, .fine = fine, .count = self.header.counts[number], .f_upper_max = self.header.f_upper_max };
    }

    fn place(self: *const Levels, whole: []const u8, number: usize, memory: []align(64) u8, codes: *const quant.Codes, name: []const u8, diagnostic: *Diagnostic) Error!quant.Codes {
        const level = self.header.level(number, self.code_bytes);
        const bytes = memory[0..@intCast(level.end - level.codes)];
        @memcpy(bytes, whole[@intCast(level.codes)..@intCast(level.end)]);
        files.forget(whole[@intCast(level.codes)..@intCast(level.end)]);
        var placed = codes.*;
        placed.n = self.header.page_count * self.header.counts[number];
        placed.bytes = bytes;
        placed.factors = @alignCast(std.mem.bytesAsSlice(u32, bytes[@intCast(level.factors - level.codes)..][0 .. 4 * @as(usize, placed.n)]));
        placed.center_ids = bytes[@intCast(level.center_ids - level.codes)..][0..placed.n];
        if (!files.codes_valid(&placed)) return files.bad_file(diagnostic, name);
        return placed;
    }
};

/// The level of codes of pages that is searched with.
pub const Chosen = struct {
    levels: Levels,
    file: layout.manifest.File,
    number: usize,
    /// Of codes in memory.
    bytes: u64,

    pub fn of(levels: *const Levels, m: *const layout.manifest.Manifest, header: *const layout.headers.Codes, directory_bytes: u64, memory_bytes: u64, wanted: ?u32, diagnostic: *Diagnostic) Error!Chosen {
        const file = m.file(files.file_page_codes).?; // `open` has looked
        const beside = header.codes_offset() + directory_bytes;
        const room: ?u64 = if (memory_bytes == 0) null else memory_bytes -| beside;
        const number = if (wanted) |count| levels.with_count(count) orelse {
            diagnostic.argument = "links_kept";
            diagnostic.say("links_kept is {d}; codes of each page this index has {any}", .{ count, levels.header.counts[0..levels.header.level_count] });
            return error.InvalidArgument;
        } else levels.within(room) orelse 0;
        if (levels.memory_bytes(number) > room orelse std.math.maxInt(u64)) {
            diagnostic.argument = "memory";
            diagnostic.needed_bytes = beside + levels.memory_bytes(number);
            diagnostic.say("memory is {d} bytes, but codes of pages and the page directory take {d}", .{ memory_bytes, diagnostic.needed_bytes });
            return error.BudgetTooSmall;
        }
        return .{ .levels = levels.*, .file = file, .number = number, .bytes = header.codes_offset() + levels.memory_bytes(number) };
    }
};

test "levels are finer one after another, and pages of one record have one" {
    for ([_]u64{ 1, 3, 29, 39, 512 }) |records| {
        const header = header_of(records * 10, 10);
        try std.testing.expect(header.valid());
        try std.testing.expect(header.counts[header.level_count - 1] <= records);
        var at: u64 = @sizeOf(Header);
        for (0..header.level_count) |number| {
            const level = header.level(number, 16);
            try std.testing.expect(at <= level.codes and level.codes < level.factors and level.factors < level.center_ids and level.center_ids < level.end);
            at = level.end;
        }
    }
    try std.testing.expectEqual(1, header_of(10, 10).level_count);
}
