-- Refuses a request whose JSON body nests deeper than a limit, before the server has all of it:
-- such a body ends some servers. For HAProxy 2.5 and newer:
--
--     global
--         lua-load-per-thread json_depth.lua
--     frontend ...
--         filter lua.json_depth 100
--
-- Brackets in strings do not count. Of a body whose header inference-header-content-length gives
-- the length of its JSON, as clients of Triton send it with binary tensors, the rest is not read.

local JsonDepth = { id = "refuses JSON that nests too deep", flags = filter.FLT_CFG_FL_HTX }
JsonDepth.__index = JsonDepth

function JsonDepth:new()
    local own = { limit = self.limit, depth = 0, in_string = false, is_escaped = false, left = math.huge }
    return setmetatable(own, self)
end

function JsonDepth:start_analyze(txn, channel)
    if not channel:is_resp() then
        filter.register_data_filter(self, channel)
    end
    return filter.CONTINUE
end

function JsonDepth:http_headers(txn, message)
    if message:is_resp() then
        return filter.CONTINUE
    end
    local lengths = message:get_headers()["inference-header-content-length"]
    -- What the server makes of several, or of what is no number, is not known: then all is read.
    if lengths and not lengths[1] and lengths[0]:match("^%d+$") and #lengths[0] < 16 then
        self.left = tonumber(lengths[0])
    end
    return filter.CONTINUE
end

-- To return nothing passes all of it on. An error alone has HAProxy drop the request, with 400.
function JsonDepth:http_payload(txn, message)
    local text = not message:is_resp() and message:body()
    if text then
        self:check(#text > self.left and text:sub(1, self.left) or text)
        self.left = math.max(0, self.left - #text)
    end
end

function JsonDepth:check(text)
    local at = 1
    if self.is_escaped and text ~= "" then
        self.is_escaped, at = false, 2
    end
    while true do
        at = text:find(self.in_string and '["\\]' or '["%[%]{}]', at)
        if not at then
            return
        end
        local letter = text:sub(at, at)
        if letter == '"' then
            self.in_string = not self.in_string
        elseif letter == "\\" then
            at = at + 1
            self.is_escaped = at > #text
        elseif letter == "]" or letter == "}" then
            self.depth = self.depth - 1
        elseif self.depth < self.limit then
            self.depth = self.depth + 1
        else
            error("a JSON body nests deeper than " .. self.limit, 0)
        end
        at = at + 1
    end
end

core.register_filter("json_depth", JsonDepth, function(class, arguments)
    class.limit = tonumber(arguments[1])
    return class
end)
