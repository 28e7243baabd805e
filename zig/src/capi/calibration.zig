//! The table behind `recall`: storing it, and what it makes of a search.
const std = @import("std");
const index = @import("index");
const search = @import("search");
const common = @import("common.zig");
const open = @import("open.zig");
const ok = common.ok;

pub const Expectation = extern struct {
    struct_size: u32,
    calibrated: i32,
    list_size: u32,
    recall: f32,
    reads: f32,
    rounds: f32,
    estimates: f32,
    expanded: f32,
    records_scored: f32,
};

export fn velo_calibration_store(path: ?[*:0]const u8, calibration_json: ?[*:0]const u8) i32 {
    const folder = path orelse return common.null_argument("path");
    var diagnostic: index.Diagnostic = .{};
    const json = if (calibration_json) |text| std.mem.span(text) else null;
    index.store_calibration(common.allocator, std.mem.span(folder), json, &diagnostic) catch |err| return common.fail_index(err, &diagnostic);
    return ok;
}

export fn velo_expect(handle: ?*open.Index, options: ?*const open.SearchOptions, expectation_out: ?*Expectation) i32 {
    const self = handle orelse return common.null_argument("index");
    const given = options orelse return common.null_argument("options");
    const out = expectation_out orelse return common.null_argument("expectation_out");
    if (self.enter()) |status| return status;
    defer self.leave();
    const o = common.versioned(open.SearchOptions, given) orelse return common.size_error("options", given.struct_size);
    if (open.refused(&o)) |status| return status;
    fill(out, &o, &self.reader, self.calibration());
    return ok;
}

fn fill(out: *Expectation, o: *const open.SearchOptions, reader: *const index.Reader, calibration: search.Calibration) void {
    const parameters = open.resolved(o, calibration);
    var expectation: Expectation = std.mem.zeroes(Expectation);
    expectation.list_size = parameters.list_size;
    const scanned = if (parameters.every) search.expected_of_every(reader, &parameters) else if (parameters.scan) calibration.expected_of_scan() else null;
    if (scanned orelse calibration.expected(o.k, parameters.list_size)) |expected| {
        expectation.calibrated = 1;
        expectation.recall = expected.recall;
        expectation.reads = expected.reads;
        expectation.rounds = expected.rounds;
        expectation.estimates = expected.estimates;
        expectation.expanded = expected.expanded;
        expectation.records_scored = expected.scored;
    }
    common.write_versioned(Expectation, out, &expectation);
}

pub const MemoryPlan = extern struct {
    struct_size: u32,
    plan: i32,
    links_kept: u32,
    reserved: u32,
    codes_bytes: u64,
    pages_bytes: u64,
    links_bytes: u64,
    cache_bytes: u64,
};

export fn velo_plan_for(
    handle: ?*open.Index,
    memory_bytes: u64,
    options: ?*const open.SearchOptions,
    plan_out: ?*MemoryPlan,
    expectation_out: ?*Expectation,
) i32 {
    const self = handle orelse return common.null_argument("index");
    const given = options orelse return common.null_argument("options");
    const out = plan_out orelse return common.null_argument("plan_out");
    const expected = expectation_out orelse return common.null_argument("expectation_out");
    if (self.enter()) |status| return status;
    defer self.leave();
    const o = common.versioned(open.SearchOptions, given) orelse return common.size_error("options", given.struct_size);
    if (open.refused(&o)) |status| return status;
    var diagnostic: index.Diagnostic = .{};
    const links = self.reader.links_within(memory_bytes, &diagnostic) catch |err| return common.fail_index(err, &diagnostic);
    const plan: search.Plan = if (links == null) .links_on_disk else .links_in_memory;
    var chosen: MemoryPlan = std.mem.zeroes(MemoryPlan);
    chosen.plan = @intFromEnum(plan);
    chosen.codes_bytes = self.reader.memory_codes_bytes();
    chosen.pages_bytes = self.reader.memory_pages_bytes();
    if (links) |kept| {
        chosen.links_kept = kept.kept;
        chosen.links_bytes = kept.bytes;
    } else chosen.cache_bytes = memory_bytes -| (chosen.codes_bytes + chosen.pages_bytes);
    common.write_versioned(MemoryPlan, out, &chosen);
    fill(expected, &o, &self.reader, .of(self.reader.manifest(), plan, chosen.links_kept));
    return ok;
}
